"""What real ranks know of the shards is the same from the plan as gathered; and dense weights sent later are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sharding_ranks import dense_weights, dense_weights_of_other_shapes, shard_tables

from tests.benchmarks.startup.collectives_at_scale import TableKind
from tests.rank_processes import run_ranks
from trainer.model.sharding import DenseSync, ShardMetadataSource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PLAN, GATHERED = ShardMetadataSource.PLAN, ShardMetadataSource.GATHERED


def same(left: Any, right: Any) -> bool:
    """Equal to the bit, whatever is nested."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    return bool(left == right)


@pytest.mark.parametrize("kind", TableKind)
def test_the_plan_says_what_the_ranks_would_and_costs_no_collective(tmp_path: Path, kind: TableKind) -> None:
    told = {
        (tables, source): run_ranks(2, shard_tables, tmp_path, kind, tables, source)
        for tables in (5, 20)
        for source in ShardMetadataSource
    }
    for tables in (5, 20):
        planned, gathered = told[tables, PLAN], told[tables, GATHERED]
        for ours, theirs in zip(planned, gathered, strict=True):
            assert len(ours["state"]) == tables + 2
            assert same(ours["state"], theirs["state"])
            assert (ours["gathered"], theirs["gathered"]) == (0, tables)
        owned = [len(tensor.get("own", [])) for rank in planned for tensor in rank["state"].values()]
        assert sum(owned) >= tables  # every table is somewhere
    for few, many in zip(told[5, PLAN], told[20, PLAN], strict=True):
        assert few["collectives"] == many["collectives"]
    for few, many in zip(told[5, GATHERED], told[20, GATHERED], strict=True):
        assert many["collectives"] - few["collectives"] == 2 * 15


def test_dense_weights_are_rank_0s_when_wrapped_or_when_sent_later(tmp_path: Path) -> None:
    first, second = run_ranks(2, dense_weights, tmp_path, DenseSync.SKIPPED)
    assert not same(first["wrapped"], second["wrapped"])
    assert same(first["sent"], first["wrapped"])
    assert same(second["sent"], first["sent"])
    for rank in run_ranks(2, dense_weights, tmp_path, DenseSync.BROADCAST):
        assert same(rank["wrapped"], first["sent"])


def test_ranks_with_other_dense_shapes_are_told_when_weights_are_sent(tmp_path: Path) -> None:
    _, second = run_ranks(2, dense_weights_of_other_shapes, tmp_path)
    assert "refused" in second
    assert "with sizes [1, 3] appears not to match" in second
