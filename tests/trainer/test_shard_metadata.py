"""Sharding takes as many collectives for 20 tables as for 5; with a group of ranks that do not exist."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from tests.benchmarks.startup.collectives_at_scale import Count, TableKind, count_sharding, counted, main
from trainer.model.shard_metadata import (
    BagSharder,
    PlannedSequenceSharder,
    SequenceSharder,
    metadata_from,
    sharders_for,
)
from trainer.model.sharding import DenseSync, ShardMetadataSource

RANKS = 8


def count(
    kind: TableKind,
    tables: int,
    metadata: ShardMetadataSource = ShardMetadataSource.PLAN,
    sync: DenseSync = DenseSync.BROADCAST,
) -> Count:
    return count_sharding(ranks=RANKS, tables=tables, kind=kind, metadata=metadata, dense_sync=sync)


@pytest.mark.parametrize("kind", TableKind)
def test_with_the_plan_no_table_costs_a_collective(kind: TableKind) -> None:
    few, many = count(kind, 5).collectives, count(kind, 20).collectives
    assert few == many
    assert few.objects["all_gather_object"] == 0


@pytest.mark.parametrize("kind", TableKind)
def test_without_it_every_table_costs_one(kind: TableKind) -> None:
    few, many = (count(kind, tables, ShardMetadataSource.GATHERED).collectives for tables in (5, 20))
    assert (few.objects["all_gather_object"], many.objects["all_gather_object"]) == (5, 20)
    assert many.total - few.total == 2 * 15  # of an object first the size is sent, then the bytes


def test_dense_weights_are_sent_only_where_asked() -> None:
    sent = count(TableKind.BAGS, 2).collectives
    kept = count(TableKind.BAGS, 2, sync=DenseSync.SKIPPED).collectives
    assert sent.primitive - kept.primitive  # the weights, and whether all ranks have the same ones
    assert kept.primitive["allgather"] == 0
    assert kept.primitive["broadcast"] == 2 * kept.objects["broadcast_object_list"]


@pytest.mark.parametrize("source", ShardMetadataSource)
def test_torch_is_left_as_it_was(source: ShardMetadataSource) -> None:
    before = dict(vars(ShardedTensor))
    count(TableKind.SEQUENCES, 1, source)
    with pytest.raises(KeyError), metadata_from(source):
        raise KeyError("sharding failed")
    assert dict(vars(ShardedTensor)) == before


def test_sharders_offer_what_keeps_the_optimizer_in_the_backward_on_any_device() -> None:
    for sharder in (BagSharder(), SequenceSharder(), PlannedSequenceSharder()):
        for device in ("cpu", "cuda"):
            kinds = sharder.sharding_types(device)
            assert {"table_wise", "row_wise", "column_wise"} <= set(kinds)
            assert "data_parallel" not in kinds
    gathered, planned = (sharders_for(source) for source in (ShardMetadataSource.GATHERED, ShardMetadataSource.PLAN))
    assert [sharder.module_type for sharder in gathered] == [sharder.module_type for sharder in planned]


def test_what_is_sent_from_c_is_counted() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with counted() as seen:
            dist._broadcast_coalesced(dist.group.WORLD, [torch.ones(2), torch.ones(3)], 1024, 0)
    finally:
        dist.destroy_process_group()
    assert seen.primitive == {"broadcast": 1}


def test_counts_are_printed_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "4", "--tables", "2"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    cells = json.loads(last)
    assert len(cells) == len(table) - 2 == 6
    assert "| 4 | 2 | EmbeddingCollection | gathered | broadcast | 2 |" in "\n".join(table)
    assert {cell["total"] for cell in cells if cell["metadata"] == "plan" and cell["dense_sync"] == "skipped"} == {4}
