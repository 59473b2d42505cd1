"""How long a save blocks the loop: asynchronous and synchronous, and DCP's own `save`, interleaved on the same model.

    python tests/benchmarks/checkpoint_blocking.py [--megabytes 200] [--repeats 9] [--ranks 2]

Prints, for each way, the median over the repeats of the slowest rank's blocked time and of the time until durable, then
the ratio to the synchronous save, with its interval over the repeats. Paper IV-C reports 77% less blocking.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.checkpoint import Checkpointer, CheckpointMode, Lineage, Progress, RankProgress
from trainer.dpp.batch import Batch
from trainer.model.sharding import ShardMetadataSource, shard_model
from trainer.model.trainee import Trainee
from trainer.run_folder import RunFolder
from trainer.storage import CheckpointPlace

TABLES, WIDTH, ROWS_PER_BATCH = 8, 64, 256
WINDOW = ("2026-01-01", "2026-01-02")


@dataclass
class Timing:
    """Seconds: blocked is the slowest rank's, durable counts from the same start; step while the save is under way."""

    blocked: float
    durable: float
    step: float


class Tables(nn.Module):
    """Tables of `rows` rows and a linear layer."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        names = [f"t{number}" for number in range(TABLES)]
        configs = [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=WIDTH, feature_names=[f"f{name}"])
            for name in names
        ]
        self.tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.over = nn.Linear(TABLES * WIDTH, 1)
        self.sharding_constraints = {name: ParameterConstraints(sharding_types=["row_wise"]) for name in names}

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        embedded = self.tables(sparse).to_dict()
        return self.over(torch.cat([embedded[f"ft{number}"] for number in range(TABLES)], dim=1)).squeeze(1)


def measure(rank: int, world_size: int, root: str, megabytes: int, repeats: int) -> None:
    """One rank: every way once a round, in an order that rotates from round to round."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    store = dist.FileStore(f"{root}/meeting", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    rows = megabytes * 1_000_000 // (TABLES * WIDTH * 4)
    sharded = shard_model(
        Tables(rows),
        device=torch.device("cpu"),
        sparse_learning_rate=0.01,
        local_world_size=world_size,
        plan_folder=None,
        metadata=ShardMetadataSource.PLAN,
    )
    trainee = Trainee(sharded.dmp, dense_learning_rate=0.01)
    batch = _batch(rows, seed=rank)
    ways = _ways(Path(root), trainee, rank, world_size)
    timings: dict[str, list[Timing]] = {name: [] for name in ways}
    for number in range(repeats + 1):  # the first round allocates and is not counted
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            timing = _one_save(ways[name], trainee, batch, step=number)
            if number:
                timings[name].append(timing)
    idle = _slowest(_steps(trainee, batch, until=lambda count: count >= 20))
    if rank == 0:
        _print(timings, idle, megabytes, world_size)
    dist.destroy_process_group()


def _ways(root: Path, trainee: Trainee, rank: int, world_size: int) -> dict[str, Callable[[int], Callable[[], None]]]:
    """Each way: called with a step it returns once the loop may go on; what it returned waits until it is durable."""
    ways: dict[str, Callable[[int], Callable[[], None]]] = {}
    for mode in CheckpointMode:
        folder = RunFolder(root / mode.value).create()
        process = f"trainer-a1-r{rank}"
        identity = ProcessIdentity(job="benchmark/r1", source=Source.TRAINER, process=process, attempt=1, rank=rank)
        lineage = Lineage(refresh="benchmark", run="r1", window=WINDOW, spec_digest="")
        recorder = Recorder(folder.events_dir, identity)
        place = CheckpointPlace.below(folder.root)
        checkpointer = Checkpointer(place, lineage=lineage, recorder=recorder, keep=1, mode=mode)
        ways[mode.value] = _ours(checkpointer, trainee, world_size)
    ways["dcp.save"] = _stock(root, trainee)
    return ways


def _ours(checkpointer: Checkpointer, trainee: Trainee, world_size: int) -> Callable[[int], Callable[[], None]]:
    def save(step: int) -> Callable[[], None]:
        progress = Progress(step=step, cursor=step, ranks=(RankProgress(),), world_size=world_size, window=WINDOW)
        checkpointer.save(step, trainee.state(), progress)
        return lambda: checkpointer.wait(timeout_s=300)

    return save


def _stock(root: Path, trainee: Trainee) -> Callable[[int], Callable[[], None]]:
    def save(step: int) -> Callable[[], None]:
        dcp.save(trainee.state(), checkpoint_id=root / f"dcp-{step}")
        shutil.rmtree(root / f"dcp-{step - 1}", ignore_errors=True)
        return lambda: None

    return save


def _one_save(save: Callable[[int], Callable[[], None]], trainee: Trainee, batch: Batch, *, step: int) -> Timing:
    dist.barrier()
    start = time.perf_counter()
    wait = save(step)
    blocked = time.perf_counter() - start
    during = _steps(trainee, batch, until=lambda count: count >= 3)
    wait()
    durable = time.perf_counter() - start
    return Timing(_slowest(blocked), _slowest(durable), _slowest(during))


def _steps(trainee: Trainee, batch: Batch, *, until: Callable[[int], bool]) -> float:
    count, start = 0, time.perf_counter()
    while not until(count):
        trainee.step(batch)
        count += 1
    return (time.perf_counter() - start) / count


def _slowest(seconds: float) -> float:
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def _batch(rows: int, *, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.ones(TABLES * ROWS_PER_BATCH, dtype=torch.int32)
    values = torch.randint(0, rows, (TABLES * ROWS_PER_BATCH,), generator=draw)
    keys = [f"ft{number}" for number in range(TABLES)]
    sparse = KeyedJaggedTensor.from_lengths_sync(keys=keys, values=values, lengths=lengths)
    dense, labels = torch.zeros(ROWS_PER_BATCH, 1), torch.zeros(ROWS_PER_BATCH)
    return Batch(dense=dense, sparse=sparse, labels=labels, rows=ROWS_PER_BATCH)


def _print(timings: dict[str, list[Timing]], idle: float, megabytes: int, world_size: int) -> None:
    print(f"{megabytes} MB of tables, {world_size} ranks, step {1000 * idle:.1f} ms when nothing is being saved")
    print(f"{'way':10} {'blocked s':>10} {'durable s':>10} {'step meanwhile ms':>18}")
    for name, measured in timings.items():
        blocked, durable, step = (
            statistics.median(getattr(timing, what) for timing in measured) for what in ("blocked", "durable", "step")
        )
        print(f"{name:10} {blocked:10.3f} {durable:10.3f} {1000 * step:18.1f}")
    for name in timings:
        if name == CheckpointMode.SYNC.value:
            continue
        pairs = zip(timings[name], timings[CheckpointMode.SYNC.value], strict=True)
        ratios = sorted(timing.blocked / sync.blocked for timing, sync in pairs)
        low, high = _interval(ratios)
        print(f"blocked, {name} / sync: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}, n={len(ratios)})")


def _interval(ordered: list[float]) -> tuple[float, float]:
    """Order statistics that hold the median with at least 95%, where there are six values or more; else the range."""
    skip = max(0, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    return ordered[skip], ordered[-1 - skip]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    options: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        arguments = (options.ranks, root, options.megabytes, options.repeats)
        multiprocessing.spawn(measure, args=arguments, nprocs=options.ranks)


if __name__ == "__main__":
    main()
