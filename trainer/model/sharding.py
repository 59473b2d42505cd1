"""Shards a model's tables over the ranks, with row-wise Adagrad fused into their backward (paper IV-A1)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ShardingEnv, ShardingPlan, ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad

from trainer.model.initialization import table_configs
from trainer.model.plan_cache import PlanCache, PlanKey


class ShardMetadataSource(StrEnum):
    """How a rank learns where the shards of a table are."""

    PLAN = "plan"  # from the plan, which every rank has
    GATHERED = "gathered"  # one all_gather per table, as TorchRec did before the paper's fix


class PlanOrigin(StrEnum):
    """Where a sharding plan came from."""

    CACHED = "cached"
    PLANNED = "planned"


class DenseBuckets(StrEnum):
    """In which order dense gradients lie in the buffers that are added up over the ranks.

    Where a number lies decides in which order the ranks' parts of it are added, which with more than 2 ranks decides
    its last bits. DDP lays buffers out anew after an attempt's first step, so a resumed step and the undisturbed one
    would differ.
    """

    REBUILT = "rebuilt"  # by arrival from the second step on, which overlaps best with the backward
    FIXED = "fixed"  # as registered, in every step; costs a walk over the graph per step


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """A model on all ranks, and how it got there."""

    dmp: DistributedModelParallel
    plan_origin: PlanOrigin


class TableSharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder, with the kinds of sharding that keep the optimizer in the backward, on any device.

    Upstream leaves row-wise out on CPU, where it works as well.
    """

    def sharding_types(self, compute_device_type: str) -> list[str]:
        offered: list[str] = super().sharding_types("cuda")
        return [kind for kind in offered if kind != ShardingType.DATA_PARALLEL.value]


_WRAPPERS = {
    DenseBuckets.REBUILT: DefaultDataParallelWrapper(),
    # DDP keeps its first layout only where it must expect that parameters go unused.
    DenseBuckets.FIXED: DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=True),
}


def shard_model(
    model: nn.Module,
    *,
    device: torch.device,
    sparse_learning_rate: float,
    local_world_size: int,
    plan_folder: Path | None,
    metadata: ShardMetadataSource,
    dense_buckets: DenseBuckets = DenseBuckets.REBUILT,
) -> ShardedModel:
    """`model`, with its tables on the meta device, sharded over the default process group. Collective.

    A model may have `sharding_constraints`, TorchRec's `ParameterConstraints` by table. With `plan_folder` an earlier
    plan of the same tables, constraints, topology and versions is taken from there, and a new one kept.
    """
    fuse_row_wise_adagrad(model, learning_rate=sparse_learning_rate)
    topology = Topology(world_size=dist.get_world_size(), compute_device=device.type, local_world_size=local_world_size)
    constraints: dict[str, ParameterConstraints] = getattr(model, "sharding_constraints", {})
    key = PlanKey(tables=table_configs(model), constraints=constraints, topology=topology)
    plan, origin = _agreed_plan(model, key, PlanCache(plan_folder) if plan_folder else None)
    with _metadata_from(metadata):
        dmp = DistributedModelParallel(
            module=_dense_on(model, device),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=device,
            plan=plan,
            sharders=[TableSharder()],
            data_parallel_wrapper=_WRAPPERS[dense_buckets],
        )
    return ShardedModel(dmp=dmp, plan_origin=origin)


def fuse_row_wise_adagrad(model: nn.Module, *, learning_rate: float) -> None:
    """Have the backward of every embedding bag update its rows, so that no gradient of a table ever exists."""
    for module in model.modules():
        if isinstance(module, EmbeddingBagCollection):
            apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), {"lr": learning_rate, "eps": 1e-8})


def _agreed_plan(model: nn.Module, key: PlanKey, cache: PlanCache | None) -> tuple[ShardingPlan, PlanOrigin]:
    """Rank 0's plan, on every rank."""
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        plan, origin = cache.load(key) if cache else None, PlanOrigin.CACHED
        if plan is None:
            planner = EmbeddingShardingPlanner(topology=key.topology, constraints=key.constraints or None)
            plan, origin = planner.plan(model, [TableSharder()]), PlanOrigin.PLANNED
            if cache:
                cache.store(key, plan)
        box = [plan, origin]
    dist.broadcast_object_list(box, src=0)
    return box[0], box[1]


def _dense_on(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with all that has storage on `device`; tables on the meta device stay there until they are sharded."""
    return model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))


@contextlib.contextmanager
def _metadata_from(source: ShardMetadataSource) -> Iterator[None]:
    """Let sharding learn the shards' places from `source`.

    The gathered form brings back what TorchRec did before the paper's fix, for a fair baseline: calls from
    `_initialize_torch_state` go to the constructor that all-gathers each table's shard metadata.
    """
    if source is ShardMetadataSource.PLAN:
        yield
        return
    original = ShardedTensor._init_from_local_shards_and_global_metadata

    def gathered(local_shards: Any, sharded_tensor_metadata: Any, process_group: Any = None, **rest: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "_initialize_torch_state":
            return original(local_shards, sharded_tensor_metadata, process_group=process_group, **rest)
        return ShardedTensor._init_from_local_shards(
            local_shards, *sharded_tensor_metadata.size, process_group=process_group
        )

    ShardedTensor._init_from_local_shards_and_global_metadata = staticmethod(gathered)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ShardedTensor._init_from_local_shards_and_global_metadata = original  # type: ignore[method-assign]
