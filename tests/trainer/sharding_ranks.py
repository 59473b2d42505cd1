"""Real ranks over gloo, forked from a server that has imported torch once, that shard models, train and save them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.planner import ParameterConstraints
from training_job import small_spec

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from tests.benchmarks.startup.collectives_at_scale import TableKind, TablesAndLinear, counted
from trainer.checkpoint import Checkpointer, CheckpointMode, Lineage, Progress, RankProgress, load_unsharded
from trainer.dpp.batch import Batch, synthetic_batch
from trainer.model import build_model
from trainer.model.initialization import initialize_tables, table_configs
from trainer.model.sharding import DenseSync, ShardMetadataSource, shard_model, sync_dense_state
from trainer.model.trainee import Trainee
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec
from trainer.storage import CheckpointPlace

CPU = torch.device("cpu")
STEPS, ROWS = 3, 24
LINEAGE = Lineage(refresh="small", run="r1", spec_digest="0" * 20, window=("2026-03-02", "2026-03-03"))


# -- what ranks do --------------------------------------------------------------------------------------------------


def shard_tables(root: Path, kind: TableKind, tables: int, metadata: ShardMetadataSource) -> dict[str, Any]:
    """Shard many tables; the collectives that it took, and what this rank's state says of every tensor."""
    torch.manual_seed(3)
    model = TablesAndLinear(kind, tables=tables, rows=30)
    configs = table_configs(model)
    with counted() as seen:
        sharded = shard_model(
            model,
            device=CPU,
            sparse_learning_rate=0.1,
            local_world_size=dist.get_world_size(),
            plan_folder=root,
            metadata=metadata,
        )
    state = sharded.dmp.state_dict()
    initialize_tables(state, configs, seed=3)
    return {
        "gathered": seen.objects["all_gather_object"],
        "collectives": seen.total,
        "state": {name: _described(tensor) for name, tensor in state.items()},
    }


def dense_weights(root: Path, sync: DenseSync) -> dict[str, dict[str, torch.Tensor]]:
    """Shard a model whose dense weights every rank drew for itself; the weights then, and once they are sent."""
    torch.manual_seed(dist.get_rank())
    model = TablesAndLinear(TableKind.BAGS, tables=2, rows=30)
    sharded = shard_model(
        model,
        device=CPU,
        sparse_learning_rate=0.1,
        local_world_size=dist.get_world_size(),
        plan_folder=None,
        metadata=ShardMetadataSource.PLAN,
        dense_sync=sync,
    )
    wrapped = {name: tensor.clone() for name, tensor in sharded.dmp.module.over.state_dict().items()}
    sync_dense_state(sharded.dmp)
    return {"wrapped": wrapped, "sent": sharded.dmp.module.over.state_dict()}


def dense_weights_of_other_shapes(root: Path) -> str:
    """Rank 1 has built another model, which wrapping did not look at; what sending the weights says."""
    model = TablesAndLinear(TableKind.BAGS, tables=2, rows=30)
    if dist.get_rank() == 1:
        model.over = torch.nn.Linear(3, 1)
    sharded = shard_model(
        model,
        device=CPU,
        sparse_learning_rate=0.1,
        local_world_size=dist.get_world_size(),
        plan_folder=None,
        metadata=ShardMetadataSource.PLAN,
        dense_sync=DenseSync.SKIPPED,
    )
    try:
        sync_dense_state(sharded.dmp)
    except RuntimeError as error:
        return f"refused: {error}"
    return "sent"


def train_and_save(root: Path, factory: str, kind: str, metadata: ShardMetadataSource) -> dict[str, Any]:
    """A few steps, every rank on the same rows, saved; then one step more. What was right at the save and after it."""
    spec = spec_of(factory)
    job = _trainee(spec, kind, metadata, seed=spec.training.seed)
    losses = [job.step(_batch(spec, step)).loss.item() for step in range(STEPS)]
    truth = {name: _whole(tensor) for name, tensor in job.state()["model"].items()}
    predicted = job.predict(_batch(spec, 99)).clone()
    saver = _checkpointer(root)
    saver.save(STEPS, job.state(), _progress())
    saver.close()
    losses.append(job.step(_batch(spec, STEPS)).loss.item())
    return {"truth": truth, "predicted": predicted, "losses": losses, "after": job.predict(_batch(spec, 99))}


def restore_and_train(
    root: Path, again: Path, factory: str, kind: str, metadata: ShardMetadataSource
) -> dict[str, Any]:
    """Into a model that began otherwise; saved again below `again`; then the step that followed the first save."""
    spec = spec_of(factory)
    job = _trainee(spec, kind, metadata, seed=99)
    saver = _checkpointer(root)
    restored = saver.restore_newest(job.state())
    assert restored is not None
    loaded = {name: _whole(tensor) for name, tensor in job.state()["model"].items()}
    copy = _checkpointer(again)
    copy.save(STEPS, job.state(), _progress())
    copy.close()
    predicted = job.predict(_batch(spec, 99)).clone()
    loss = job.step(_batch(spec, STEPS)).loss.item()
    saver.close()
    return {"loaded": loaded, "predicted": predicted, "loss": loss, "after": job.predict(_batch(spec, 99))}


def predict_unsharded(root: Path, factory: str) -> torch.Tensor:
    """The saved model in one process, without sharding, as publishing has it."""
    spec = spec_of(factory)
    module = build_model(spec, device="cpu").eval()
    load_unsharded(saved_in(root), module)
    given = _batch(spec, 99)
    with torch.no_grad():
        return module(given.dense, given.sparse)


def saved_in(root: Path) -> Path:
    """The one checkpoint of a run below `root`."""
    [folder] = RunFolder.of("small", "r1", root).checkpoints_dir.glob("step-*")
    return folder


def spec_of(factory: str) -> RefreshSpec:
    return small_spec(model={"factory": f"trainer.model.{factory}"})


def _trainee(spec: RefreshSpec, kind: str, metadata: ShardMetadataSource, *, seed: int) -> Trainee:
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"seed": seed})})
    model = build_model(spec)
    configs = table_configs(model)
    model.sharding_constraints = {
        config.name: ParameterConstraints(sharding_types=[kind], min_partition=4) for config in configs.values()
    }
    sharded = shard_model(
        model,
        device=CPU,
        sparse_learning_rate=0.1,
        local_world_size=dist.get_world_size(),
        plan_folder=None,
        metadata=metadata,
    )
    job = Trainee(sharded.dmp, dense_learning_rate=0.01)
    initialize_tables(job.state()["model"], configs, seed=seed)
    return job


def _batch(spec: RefreshSpec, seed: int) -> Batch:
    return synthetic_batch(spec, rows=ROWS, seed=seed)


def _checkpointer(root: Path) -> Checkpointer:
    rank = dist.get_rank()
    folder = RunFolder.of("small", "r1", root)
    identity = ProcessIdentity(
        job=folder.job, source=Source.TRAINER, process=f"trainer-a1-r{rank}", attempt=1, rank=rank
    )
    return Checkpointer(
        CheckpointPlace.below(folder.root),
        lineage=LINEAGE,
        recorder=Recorder(folder.events_dir, identity),
        keep=5,
        mode=CheckpointMode.SYNC,
        commit_timeout_s=60.0,
    )


def _progress() -> Progress:
    world_size = dist.get_world_size()
    own = (RankProgress(),)
    return Progress(step=STEPS, cursor=STEPS * ROWS, ranks=own, world_size=world_size, window=LINEAGE.window)


def _described(tensor: Any) -> dict[str, Any]:
    """A tensor of the state by value, with all that a sharded one says of its shards."""
    if not hasattr(tensor, "local_shards"):
        return {"local": [tensor.detach().clone()]}
    metadata = tensor.metadata()
    return {
        "size": tuple(metadata.size),
        "dtype": metadata.tensor_properties.dtype,
        "shards": [
            (shard.shard_offsets, shard.shard_sizes, str(shard.placement)) for shard in metadata.shards_metadata
        ],
        "own": [(shard.metadata.shard_offsets, shard.metadata.shard_sizes) for shard in tensor.local_shards()],
        "local": [shard.tensor.detach().clone() for shard in tensor.local_shards()],
    }


def _whole(tensor: Any) -> torch.Tensor:
    """Collective for a sharded tensor; whole on rank 0."""
    if not hasattr(tensor, "local_shards"):
        return tensor.detach().clone()
    whole = torch.full(tuple(tensor.size()), float("nan"))
    tensor.gather(0, whole if dist.get_rank() == 0 else None)
    return whole
