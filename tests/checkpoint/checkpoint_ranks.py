"""Real ranks over gloo, forked from a server that has imported torch once; and what they do in the tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint_job import LINEAGE, only, progress_at
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointMode,
    CheckpointRef,
    load_unsharded,
    newest_complete,
    reference_table,
    restore,
)
from trainer.checkpoint import shards as shards_module
from trainer.dpp.batch import Batch
from trainer.dpp.cursor import Interval
from trainer.model.sharding import ShardMetadataSource, shard_model
from trainer.model.trainee import Trainee
from trainer.run_folder import RunFolder
from trainer.storage import CheckpointPlace, located

ROWS, TABLES, WIDTH = 37, 3, 8


class SmallModel(nn.Module):
    """Three tables of an odd number of rows, and a linear layer."""

    def __init__(self, device: str) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(name=f"t{n}", num_embeddings=ROWS, embedding_dim=WIDTH, feature_names=[f"f{n}"])
            for n in range(TABLES)
        ]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device(device))
        self.over = nn.Linear(TABLES * WIDTH + 2, 1)

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        embedded = self.tables(sparse).to_dict()  # by name: sharding decides in which order they come
        return self.over(torch.cat([dense, *(embedded[f"f{n}"] for n in range(TABLES))], dim=1)).squeeze(1)


def batch(seed: int, rows: int = 16) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 4, (TABLES * rows,), generator=draw, dtype=torch.int32)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=draw)
    keys = [f"f{n}" for n in range(TABLES)]
    sparse = KeyedJaggedTensor.from_lengths_sync(keys=keys, values=values, lengths=lengths)
    labels = torch.randint(0, 2, (rows,), generator=draw).float()
    return Batch(torch.randn(rows, 2, generator=draw), sparse, labels, rows)


def trainee(kind: str, seed: int) -> Trainee:
    torch.manual_seed(seed)
    model = SmallModel("meta")
    model.sharding_constraints = {f"t{n}": ParameterConstraints(sharding_types=[kind]) for n in range(TABLES)}
    sharded = shard_model(
        model,
        device=torch.device("cpu"),
        sparse_learning_rate=0.1,
        local_world_size=dist.get_world_size(),
        plan_folder=None,
        metadata=ShardMetadataSource.PLAN,
    )
    return Trainee(sharded.dmp, dense_learning_rate=0.05)


def share_of(rank: int) -> list[Interval]:
    return [Interval(0, rank, 30, 50 + rank)]


def checkpointer(root: Path, place: CheckpointPlace | None = None, **more: Any) -> Checkpointer:
    rank = dist.get_rank()
    process = f"trainer-a1-r{rank}"
    identity = ProcessIdentity(job="movies/r1", source=Source.TRAINER, process=process, attempt=1, rank=rank)
    folder = RunFolder.of("movies", "r1", root)
    facts = {"keep": 5, "mode": CheckpointMode.ASYNC, "lineage": LINEAGE, "commit_timeout_s": 20.0}
    place = place or CheckpointPlace.below(folder.root)
    return Checkpointer(place, recorder=Recorder(folder.events_dir, identity), **{**facts, **more})


def progress(step: int) -> Any:
    rank = dist.get_rank()
    return progress_at(step, remaining=share_of(rank), world_size=dist.get_world_size(), metrics={"rows": 10 + rank})


# -- what ranks do --------------------------------------------------------------------------------------------------


def save(root: Path, kind: str, mode: CheckpointMode = CheckpointMode.ASYNC) -> dict[str, Any]:
    """Three steps, save, one step more at once, so that a copy taken too late would show. Returns what was right."""
    job = trainee(kind, seed=1)
    saver = checkpointer(root, mode=mode)
    for step in range(3):
        job.step(batch(step))
    truth = {name: _whole(tensor) for name, tensor in job.state()["model"].items()}
    predicted = job.predict(batch(99)).clone()
    saver.save(3, job.state(), progress(3))
    job.step(batch(3))
    after = job.predict(batch(99))
    saver.close()
    return {"truth": truth, "predicted": predicted, "after": after}


def load(root: Path, kind: str) -> dict[str, Any]:
    """Restore into a model that was initialized otherwise; predict, train one step, predict."""
    job = trainee(kind, seed=2)
    folder = only(RunFolder.of("movies", "r1", root).checkpoints_dir, "step-3-*")
    saved = restore(CheckpointRef.open(folder), job.state())
    loaded = {name: _whole(tensor) for name, tensor in job.state()["model"].items()}
    predicted = job.predict(batch(99)).clone()
    job.step(batch(3))
    return {"loaded": loaded, "predicted": predicted, "after": job.predict(batch(99)), "progress": saved}


def save_then_die(root: Path, mode: CheckpointMode) -> dict[str, Any]:
    """Rank 1 is killed while it writes its shard of step 2."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root, mode=mode, commit_timeout_s=4.0)
    job.step(batch(0))
    saver.save_before_exit(1, job.state(), progress(1))
    if dist.get_rank() == 1:
        shards_module._shard_item = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    saver.save(2, job.state(), progress(2))
    try:
        saver.close(timeout_s=20)
    except CheckpointError as error:
        newest = newest_complete(RunFolder.of("movies", "r1", root).checkpoints_dir)
        return {"error": str(error), "newest": newest and newest.step}
    return {}


def save_with_a_failing_rank(root: Path) -> str:
    """Rank 1 cannot write its shard; both ranks must hear of it at once, not at the deadline."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root, commit_timeout_s=300.0)
    if dist.get_rank() == 1:
        shards_module.torch.save = _no_space  # type: ignore[attr-defined]
    try:
        saver.save_before_exit(1, job.state(), progress(1), timeout_s=300.0)
    except CheckpointError as error:
        return str(error)
    return "saved"


def save_twice_and_damage(root: Path) -> int:
    """A shard that only rank 1 hashes is changed: both ranks take the checkpoint before."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root)
    for step in (1, 2):
        job.step(batch(step))
        saver.save_before_exit(step, job.state(), progress(step))
    folder = RunFolder.of("movies", "r1", root)
    shard = only(folder.checkpoints_dir, "step-2-*") / "__0_0.distcp"  # second of three names in order
    if dist.get_rank() == 0:
        content = bytearray(shard.read_bytes())
        content[900] ^= 1
        shard.write_bytes(content)
    dist.barrier()
    restored = saver.restore_newest(job.state())
    return restored.ref.step if restored else 0


def save_anchor_beside_a_stopped_rank(root: Path) -> str:
    """Rank 1 is stopped while it writes its part of the anchor; rank 0 gives up and ends it."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root, commit_timeout_s=2.0)
    pids: list[int] = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 1:
        shards_module._shard_item = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    try:
        saver.save_anchor(1, job.state(), progress(1), reference_table(rows=[], labels=[], logits=[]))
    except CheckpointError as error:
        os.kill(pids[1], signal.SIGKILL)
        return str(error)
    return "saved"


def restore_while_one_rank_has_no_storage(root: Path) -> str:
    """Two checkpoints; rank 1 cannot read, which says nothing about either."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root)
    for step in (1, 2):
        saver.save_before_exit(step, job.state(), progress(step))
    if dist.get_rank() == 1:
        sys.modules["trainer.checkpoint.restore"].check_content = _no_answer  # the name `restore` is the function's
    try:
        saver.restore_newest(job.state())
    except (CheckpointError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "restored"


def save_in_store(root: Path, url: str, variables: dict[str, str]) -> str:
    """Save into an object store, change the model, restore; what was restored."""
    os.environ.update(variables)  # the server that forks the ranks may be older than the store
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root, place=CheckpointPlace.below(located(url)))
    job.step(batch(1))
    saver.save_before_exit(1, job.state(), progress(1))
    truth = job.predict(batch(99)).clone()
    job.step(batch(2))
    restored = saver.restore_newest(job.state())
    saver.close()
    assert torch.equal(job.predict(batch(99)), truth)
    return f"step-{restored.ref.step}" if restored else "nothing"


def save_anchor(root: Path) -> dict[str, Any]:
    """The anchor with each rank's part of the reference, read back by an unsharded module."""
    job = trainee("row_wise", seed=1)
    saver = checkpointer(root)
    job.step(batch(0))
    rank = dist.get_rank()
    part = reference_table(rows=[Interval(0, 0, rank * 2, rank * 2 + 2)], labels=[0, 1], logits=[rank, -rank])
    ref = saver.save_anchor(1, job.state(), progress(1), part, timeout_s=30)
    saver.close()
    module = SmallModel("cpu")
    load_unsharded(ref.path, module)
    given = batch(99)
    with torch.no_grad():
        difference = (module(given.dense, given.sparse) - job.predict(given)).abs().max().item()
    return {"difference": difference, "path": str(ref.path)}


def _whole(tensor: Any) -> torch.Tensor:
    """Collective for a sharded tensor; whole on rank 0."""
    if not hasattr(tensor, "local_shards"):
        return tensor.detach().clone()
    whole = torch.full(tuple(tensor.size()), float("nan"))
    tensor.gather(0, whole if dist.get_rank() == 0 else None)
    return whole


def _no_answer(*_: object) -> None:
    raise OSError(5, "Input/output error")


def _no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
