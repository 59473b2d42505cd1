"""What ranks do to show that a resume continues exactly: optimizer states, schedule, and sums over the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint_job import only
from checkpoint_ranks import ROWS, TABLES, SmallModel, batch, checkpointer, progress
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torchrec.distributed.planner import ParameterConstraints
from torchrec.optim.keyed import CombinedOptimizer

from trainer.checkpoint import CheckpointRef, restore
from trainer.model.sharding import DenseBuckets, ShardMetadataSource, shard_model
from trainer.model.trainee import Trainee
from trainer.storage import CheckpointPlace

WARMUP = 8
SAVED_AT = 3
STEPS = 6


def trainee(kind: str, buckets: DenseBuckets, *, seed: int) -> Trainee:
    """A small model with two dense layers, so that the layout of the gradients' buffer matters, that warms up."""
    torch.manual_seed(seed)
    model = SmallModel("meta")
    width = model.over.in_features
    model.over = torch.nn.Sequential(torch.nn.Linear(width, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
    model.sharding_constraints = {f"t{n}": ParameterConstraints(sharding_types=[kind]) for n in range(TABLES)}
    sharded = shard_model(
        model,
        device=torch.device("cpu"),
        sparse_learning_rate=0.1,
        local_world_size=dist.get_world_size(),
        plan_folder=None,
        metadata=ShardMetadataSource.PLAN,
        dense_buckets=buckets,
    )
    return Trainee(sharded.dmp, dense_learning_rate=0.05, warmup_steps=WARMUP)


def own_batch(step: int) -> Any:
    """Another batch on every rank and step."""
    return batch(100 * step + dist.get_rank())


def undisturbed(root: Path, kind: str, buckets: DenseBuckets) -> dict[str, Any]:
    """All steps in one go, with a save on the way; the whole state at the save and at the end, and the rates."""
    job = trainee(kind, buckets, seed=1)
    saver = checkpointer(root)
    rates = []
    for step in range(STEPS):
        if step == SAVED_AT:
            saver.save(step, job.state(), progress(step))
            saved = whole_state(job)
        job.step(own_batch(step))
        rates.append(rates_of(job))
    saver.close()
    return {"saved": saved, "end": whole_state(job), "rates": rates}


def resumed(root: Path, kind: str, buckets: DenseBuckets) -> dict[str, Any]:
    """The rest of the steps, from the save, in a model that was initialized otherwise."""
    job = trainee(kind, buckets, seed=2)
    folder = only(CheckpointPlace.below(root / "movies" / "r1").checkpoints, "step-*")
    restore(CheckpointRef.open(folder), job.state())
    loaded, rates = whole_state(job), []
    for step in range(SAVED_AT, STEPS):
        job.step(own_batch(step))
        rates.append(rates_of(job))
    return {"loaded": loaded, "end": whole_state(job), "rates": rates}


def rates_of(job: Trainee) -> tuple[float, float | None]:
    """The dense rate, and the one that the tables' kernels have been given; None on a rank without tables."""
    (dense,) = {group["lr"] for group in job._optimizer.param_groups}
    sparse = {float(kernel.learning_rate_tensor) for kernel in _kernels(job.dmp.fused_optimizer)}
    return dense, sparse.pop() if len(sparse) == 1 else None


def _kernels(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, CombinedOptimizer):
        return [kernel for _, part in optimizer.optimizers for kernel in _kernels(part)]
    return [optimizer._emb_module]


def whole_state(job: Trainee) -> dict[str, torch.Tensor]:
    """Every tensor of the state, gathered onto every rank."""
    flat, _ = flatten_state_dict(job.state())
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, sorted(flat))
    whole = {}
    for name in sorted(set().union(*names)):
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, _shards(flat.get(name)))
        whole[name] = _joined([shard for part in parts for shard in part])
    return whole


def _shards(tensor: Any) -> list[tuple[int, int, torch.Tensor]]:
    if tensor is None:
        return []
    if not hasattr(tensor, "local_shards"):
        return [(0, 0, tensor.detach().clone())]
    return [
        (shard.metadata.shard_offsets[0], (shard.metadata.shard_offsets[1:] or [0])[0], shard.tensor.detach().clone())
        for shard in tensor.local_shards()
    ]


def _joined(shards: list[tuple[int, int, torch.Tensor]]) -> torch.Tensor:
    """Rows in their order; replicas are the same."""
    placed = {(row, column): tensor for row, column, tensor in shards}
    assert {column for _, column in placed} == {0}
    parts = [tensor for _, tensor in sorted(placed.items(), key=lambda item: item[0])]
    joined = torch.cat(parts) if parts[0].dim() else parts[0]
    assert not joined.dim() or len(placed) == 1 or len(joined) == ROWS
    return joined
