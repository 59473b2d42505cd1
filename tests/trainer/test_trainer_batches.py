"""Batches as the ranks see them: padded to one size, and never a holdout entity among the training rows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from training_job import FIRST_DAY, small_spec

from trainer.dpp.batch import sparse_keys, synthetic_host_batch, to_tensors
from trainer.dpp.cursor import count, divide, steps_for
from trainer.dpp.reader import PartitionReader, read_holdout
from trainer.dpp.scan import unchecked_plan
from trainer.model import build_model
from trainer.model.initialization import initialize_tables, table_configs
from trainer.padding import padded
from trainer.spec import Window


def test_no_entity_of_the_holdout_is_among_the_training_rows(landed: Path):
    spec = small_spec()
    plan = unchecked_plan(spec, landed, Window(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=2)))
    shares = divide(plan.intervals(), 2)
    steps = steps_for([count(share) for share in shares], 64)
    trained, held_out, rows = set(), set(), 0
    for share in shares:
        with PartitionReader(plan, spec.contract, share, batch_size=64, steps=steps) as reader:
            for batch in reader:
                trained.update(batch.entities.tolist())
                rows += batch.rows
    with read_holdout(plan, spec.contract, rank=0, world_size=1, batch_size=512) as reader:
        for batch in reader:
            held_out.update(batch.entities.tolist())
    assert rows == plan.train_rows
    assert held_out
    assert not trained & held_out


@pytest.mark.parametrize("rows", [0, 3])
def test_padding_changes_no_prediction(rows: int):
    spec = small_spec()
    keys = sparse_keys(spec)
    host = synthetic_host_batch(spec, rows, seed=2)
    wide = padded(host, 5, keys=len(keys))
    assert (wide.rows, len(wide.labels), len(wide.dense), len(wide.lengths)) == (rows, rows, 5, 5 * len(keys))
    model = build_model(spec, device="cpu")
    initialize_tables(model.state_dict(), table_configs(model), seed=1)
    batch = to_tensors(wide, keys)
    assert batch.sparse.stride() == 5
    logits = model(batch.dense, batch.sparse)
    plain = to_tensors(host, keys)
    if rows:
        assert torch.allclose(logits[:rows], model(plain.dense, plain.sparse))
    assert torch.isfinite(logits).all()


def test_a_batch_is_not_cut_by_padding():
    host = synthetic_host_batch(small_spec(), 4, seed=2)
    assert padded(host, 4, keys=3) is host
    with pytest.raises(ValueError, match="cannot be padded to 3"):
        padded(host, 3, keys=3)
    assert np.array_equal(host.labels, padded(host, 9, keys=3).labels)
