"""Tensors out of host batches, and the fast-batch: same shapes, types and keys."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.dpp.baseline import target_encoding_auc
from trainer.dpp.batch import Batch, sparse_keys, synthetic_batch, to_tensors
from trainer.dpp.cursor import Interval
from trainer.dpp.reader import PartitionReader
from trainer.dpp.scan import unchecked_plan
from trainer.spec import RefreshSpec, Window


def one_batch(spec: RefreshSpec, root: Path, window: Window, rows: int) -> Batch:
    plan = unchecked_plan(spec, root, window)
    with PartitionReader(plan, spec.contract, [Interval(0, 0, 0, rows)], batch_size=32, steps=1) as reader:
        return to_tensors(next(reader), sparse_keys(spec))


def test_a_batch_has_a_bag_of_valid_rows_for_every_key(spec: RefreshSpec, root: Path, window: Window) -> None:
    batch = one_batch(spec, root, window, 32)
    assert batch.dense.shape == (32, 2) and batch.dense.dtype == torch.float32
    assert batch.sparse.keys() == ["product", "shelf", "recent", "shelves"]
    for column in spec.contract.sparse:
        bag = batch.sparse[column.name]
        assert bag.lengths().shape == (32,)
        assert bag.values().numel() == int(bag.lengths().sum())
        assert int(bag.values().min()) >= 0 and int(bag.values().max()) < (column.num_embeddings or 0)


def test_the_fast_batch_looks_like_a_real_one_and_is_seeded(spec: RefreshSpec, root: Path, window: Window) -> None:
    real, fast = one_batch(spec, root, window, 32), synthetic_batch(spec, 32, seed=5)
    for name in ("dense", "labels"):
        assert getattr(fast, name).shape == getattr(real, name).shape
        assert getattr(fast, name).dtype == getattr(real, name).dtype
    assert fast.sparse.keys() == real.sparse.keys()
    assert fast.sparse.lengths().dtype == real.sparse.lengths().dtype == torch.int32
    assert fast.sparse.values().dtype == real.sparse.values().dtype == torch.int64
    for column in spec.contract.sparse:
        assert int(fast.sparse[column.name].values().max()) < (column.num_embeddings or 0)
    assert torch.equal(fast.sparse.values(), synthetic_batch(spec, 32, seed=5).sparse.values())
    assert not torch.equal(fast.dense, synthetic_batch(spec, 32, seed=6).dense)


def test_a_batch_without_rows_is_a_batch(spec: RefreshSpec, root: Path, window: Window) -> None:
    plan = unchecked_plan(spec, root, window)
    with PartitionReader(plan, spec.contract, [], batch_size=32, steps=1) as reader:
        batch = to_tensors(next(reader), sparse_keys(spec))
    assert batch.rows == 0 and batch.sparse.values().numel() == 0


def test_generated_data_has_a_signal_that_target_encoding_finds(spec: RefreshSpec, tmp_path: Path) -> None:
    from datetime import date, timedelta

    from trainer.dpp.sources.generated import Generator

    newest = date(2026, 11, 28)
    Generator(spec.contract, rows_per_day=4000, entities=300).land(tmp_path, newest, 3)
    plan = unchecked_plan(spec, tmp_path, Window(start=newest - timedelta(days=2), end=newest + timedelta(days=1)))
    scores = target_encoding_auc(plan, spec.contract)
    assert scores["best"] > 0.55 and scores["combined"] > 0.55
    assert 0.45 < scores["shopper"] < 0.55  # the holdout's entities were never trained on
