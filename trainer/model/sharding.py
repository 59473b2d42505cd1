"""Shards a model's tables over the ranks, with row-wise Adagrad fused into their backward (paper IV-A1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim import RowWiseAdagrad

from trainer.model.dense_sync import DenseSync, sync_dense_state
from trainer.model.initialization import table_configs
from trainer.model.plan_cache import PlanCache, PlanKey
from trainer.model.shard_metadata import ShardMetadataSource, metadata_from, sharders_for

__all__ = [
    "DenseBuckets",
    "DenseSync",
    "PlanOrigin",
    "ShardMetadataSource",
    "ShardedModel",
    "fuse_row_wise_adagrad",
    "shard_model",
    "sync_dense_state",
]


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


def shard_model(
    model: nn.Module,
    *,
    device: torch.device,
    sparse_learning_rate: float,
    local_world_size: int,
    plan_folder: Path | None,
    metadata: ShardMetadataSource,
    dense_buckets: DenseBuckets = DenseBuckets.REBUILT,
    dense_sync: DenseSync = DenseSync.BROADCAST,
) -> ShardedModel:
    """`model`, with its tables on the meta device, sharded over the default process group. Collective.

    A model may have `sharding_constraints`, TorchRec's `ParameterConstraints` by table. With `plan_folder` an earlier
    plan of the same tables, constraints, topology and versions is taken from there, and a new one kept. After
    `DenseSync.SKIPPED` either every rank loads the dense weights, or all call `sync_dense_state`.
    """
    fuse_row_wise_adagrad(model, learning_rate=sparse_learning_rate)
    topology = Topology(world_size=dist.get_world_size(), compute_device=device.type, local_world_size=local_world_size)
    constraints: dict[str, ParameterConstraints] = getattr(model, "sharding_constraints", {})
    key = PlanKey(tables=table_configs(model), constraints=constraints, topology=topology)
    sharders = sharders_for(metadata)
    plan, origin = _agreed_plan(model, key, sharders, PlanCache(plan_folder) if plan_folder else None)
    with metadata_from(metadata):
        dmp = DistributedModelParallel(
            module=dense_on(model, device),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=device,
            plan=plan,
            sharders=sharders,
            data_parallel_wrapper=_data_parallel(dense_buckets, dense_sync),
        )
    return ShardedModel(dmp=dmp, plan_origin=origin)


def fuse_row_wise_adagrad(model: nn.Module, *, learning_rate: float) -> None:
    """Have the backward of every table's lookup update its rows, so that no gradient of a table ever exists."""
    for module in model.modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), {"lr": learning_rate, "eps": 1e-8})


def _agreed_plan(
    model: nn.Module, key: PlanKey, sharders: list[ModuleSharder[nn.Module]], cache: PlanCache | None
) -> tuple[ShardingPlan, PlanOrigin]:
    """Rank 0's plan, on every rank.

    Sent even where it came from the cache: that every rank read the same file cannot be known without a collective.
    """
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        plan, origin = cache.load(key) if cache else None, PlanOrigin.CACHED
        if plan is None:
            planner = EmbeddingShardingPlanner(topology=key.topology, constraints=key.constraints or None)
            plan, origin = planner.plan(model, sharders), PlanOrigin.PLANNED
            if cache:
                cache.store(key, plan)
        box = [plan, origin]
    dist.broadcast_object_list(box, src=0)
    return box[0], box[1]


def _data_parallel(buckets: DenseBuckets, sync: DenseSync) -> DefaultDataParallelWrapper:
    ddp_arguments = {"init_sync": sync is DenseSync.BROADCAST}
    if buckets is DenseBuckets.REBUILT:
        return DefaultDataParallelWrapper(ddp_kwargs=ddp_arguments)
    # DDP keeps its first layout only where it must expect that parameters go unused.
    return DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=True, ddp_kwargs=ddp_arguments)


def dense_on(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with all that has storage on `device`; tables on the meta device stay there until they are sharded."""
    return model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))
