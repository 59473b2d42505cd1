"""How many collectives sharding a model takes on 128 ranks: `python -m tests.benchmarks.startup.collectives_at_scale`.

One process stands for rank 0; a fake process group answers for the others. Counts are exact; times would mean nothing
and are not taken. The plan is given (every table row-wise over all ranks), since a search takes minutes at this size.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.distributed.remote_device import _remote_device
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.distributed import collective_utils
from torchrec.distributed.planner import Topology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from trainer.model.initialization import table_configs
from trainer.model.plan_cache import PlanCache, PlanKey
from trainer.model.sharding import DenseSync, PlanOrigin, ShardMetadataSource, shard_model

CPU = torch.device("cpu")
WIDTH, ROWS_PER_RANK = 8, 4
OBJECT_COLLECTIVES = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


class TableKind(StrEnum):
    """Which TorchRec module holds the tables."""

    BAGS = "EmbeddingBagCollection"
    SEQUENCES = "EmbeddingCollection"


class TablesAndLinear(nn.Module):
    """`tables` tables of `rows` rows on the meta device, and a linear layer, the dense part."""

    def __init__(self, kind: TableKind, *, tables: int, rows: int) -> None:
        super().__init__()
        facts = [
            {"name": f"t{n}", "num_embeddings": rows, "embedding_dim": WIDTH, "feature_names": [f"f{n}"]}
            for n in range(tables)
        ]
        meta = torch.device("meta")
        self.tables: nn.Module
        if kind is TableKind.BAGS:
            self.tables = EmbeddingBagCollection(tables=[EmbeddingBagConfig(**fact) for fact in facts], device=meta)
        else:
            self.tables = EmbeddingCollection(tables=[EmbeddingConfig(**fact) for fact in facts], device=meta)
        self.over = nn.Linear(WIDTH, 1)


@dataclasses.dataclass(frozen=True)
class Collectives:
    """`objects`: calls by name of those that send pickled objects. `primitive`: all that reached the process group, by
    name, among them the two that every object takes."""

    objects: Counter[str] = dataclasses.field(default_factory=Counter)
    primitive: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.primitive.total()


@contextlib.contextmanager
def counted() -> Iterator[Collectives]:
    """Count this thread's collectives, those started from C++ (as DDP's) included."""
    seen = Collectives()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "c10d":
                seen.primitive[func._schema.name.removeprefix("c10d::").strip("_")] += 1
            return func(*args, **(kwargs or {}))

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            seen.objects[name] += 1
            return original(*arguments, **named)

        return called

    with contextlib.ExitStack() as patches:
        for name in OBJECT_COLLECTIVES:
            patches.enter_context(mock.patch.object(dist, name, counting(name, getattr(dist, name))))
        patches.enter_context(Counting())
        yield seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """One cell of the table."""

    ranks: int
    tables: int
    kind: TableKind
    metadata: ShardMetadataSource
    dense_sync: DenseSync
    collectives: Collectives

    def to_json(self) -> dict[str, Any]:
        names = ("ranks", "tables", "kind", "metadata", "dense_sync")
        objects, primitive = dict(self.collectives.objects), dict(self.collectives.primitive)
        cell = {name: getattr(self, name) for name in names}
        return {**cell, "objects": objects, "primitive": primitive, "total": self.collectives.total}


def count_sharding(
    *, ranks: int, tables: int, kind: TableKind, metadata: ShardMetadataSource, dense_sync: DenseSync
) -> Count:
    """Shard a model as rank 0 of `ranks`, none of which exists, with a plan that is found in the cache."""
    model = TablesAndLinear(kind, tables=tables, rows=ranks * ROWS_PER_RANK)
    with tempfile.TemporaryDirectory() as folder, _fake_group(ranks):
        topology = Topology(world_size=ranks, compute_device=CPU.type, local_world_size=1)
        key = PlanKey(tables=table_configs(model), constraints={}, topology=topology)
        PlanCache(Path(folder)).store(key, row_wise_plan(tables=tables, ranks=ranks))
        with counted() as seen:
            sharded = shard_model(
                model,
                device=CPU,
                sparse_learning_rate=0.1,
                local_world_size=1,
                plan_folder=Path(folder),
                metadata=metadata,
                dense_sync=dense_sync,
            )
    if sharded.plan_origin is not PlanOrigin.CACHED:
        raise AssertionError("the given plan was not used")
    return Count(ranks=ranks, tables=tables, kind=kind, metadata=metadata, dense_sync=dense_sync, collectives=seen)


def row_wise_plan(*, tables: int, ranks: int) -> ShardingPlan:
    """Every table in equal blocks of rows over all ranks."""
    shards = [
        ShardMetadata([rank * ROWS_PER_RANK, 0], [ROWS_PER_RANK, WIDTH], _remote_device(f"rank:{rank}/cpu"))
        for rank in range(ranks)
    ]
    return ShardingPlan(
        {
            "tables": EmbeddingModuleShardingPlan(
                {
                    f"t{n}": ParameterSharding(
                        "row_wise", "fused", list(range(ranks)), EnumerableShardingSpec(copy.deepcopy(shards))
                    )
                    for n in range(tables)
                }
            )
        }
    )


@contextlib.contextmanager
def _fake_group(ranks: int) -> Iterator[None]:
    """A group whose other ranks answer an `all_gather_object` as equal blocks of rows would make them."""
    gather = dist.all_gather_object

    def gathered(answers: list[Any], own: Any, group: Any = None) -> None:
        gather(answers, own, group)
        for rank in range(ranks):
            answers[rank] = copy.deepcopy(own)
            [shard] = answers[rank].shards_metadata
            shard.shard_offsets = [rank * ROWS_PER_RANK, 0]
            shard.placement = _remote_device(f"rank:{rank}/cpu")

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(dist, "all_gather_object", gathered))
            # TorchRec leaves the tables' state out for a group that calls itself fake, and agrees on its settings once
            # a process, which here stands for many.
            patches.enter_context(mock.patch.object(dist, "get_backend", lambda group=None: "gloo"))
            patches.enter_context(mock.patch.object(collective_utils, "_INITIALIZED", False))
            yield
    finally:
        dist.destroy_process_group()


def markdown(counts: list[Count]) -> str:
    """One row a cell."""
    lines = [
        "| ranks | tables | module | metadata | dense weights | objects gathered | objects broadcast | collectives |",
        "| ---: | ---: | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for count in counts:
        objects = count.collectives.objects
        lines.append(
            f"| {count.ranks} | {count.tables} | {count.kind} | {count.metadata} | {count.dense_sync} "
            f"| {objects['all_gather_object']} | {objects['broadcast_object_list']} | {count.collectives.total} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # its advice on topologies, once a cell
    parser = argparse.ArgumentParser(description="Count the collectives of sharding by kind.")
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--tables", type=int, nargs="+", default=[50, 200])
    options = parser.parse_args(arguments)
    counts = [
        count_sharding(ranks=options.ranks, tables=tables, kind=kind, metadata=metadata, dense_sync=sync)
        for tables in options.tables
        for kind in TableKind
        for metadata, sync in (
            (ShardMetadataSource.GATHERED, DenseSync.BROADCAST),
            (ShardMetadataSource.PLAN, DenseSync.BROADCAST),
            (ShardMetadataSource.PLAN, DenseSync.SKIPPED),
        )
    ]
    print(markdown(counts))
    print(json.dumps([count.to_json() for count in counts]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
