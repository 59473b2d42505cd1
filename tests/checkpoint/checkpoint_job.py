"""One small job on one rank: enough to save, damage and restore real checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.checkpoint import Checkpointer, CheckpointMode, Lineage, Progress, RankProgress, reference_table
from trainer.dpp.cursor import Interval
from trainer.run_folder import RunFolder
from trainer.storage import CheckpointPlace, names_in

HOLDOUT = [Interval(0, 1, 0, 2), Interval(0, 0, 3, 4)]
LINEAGE = Lineage(
    refresh="movies",
    run="r1",
    window=("2026-01-01", "2026-01-02"),
    spec_digest="abc",
    started_from_run="r0",
    started_from_anchor="/runs/r0/anchor",
)


def progress_at(
    step: int, *, remaining: list[Interval] | None = None, metrics: dict[str, Any] | None = None, **changes: Any
) -> Progress:
    rank = RankProgress(
        remaining=(Interval(0, 0, step * 10, 1000),) if remaining is None else tuple(remaining),
        metrics={"train": {"rows": step * 10, "histogram": [step, 1]}} if metrics is None else metrics,
    )
    facts: dict[str, Any] = {
        "step": step,
        "cursor": step * 10,
        "world_size": 1,
        "window": ("2026-01-01", "2026-01-02"),
        "ranks": (rank,),
    }
    return Progress(**{**facts, **changes})


@dataclass
class Job:
    """A one-rank training job: a module, an Adam, and a checkpointer over a run folder."""

    run_folder: RunFolder
    recorder: Recorder
    at: CheckpointPlace | None = None
    module: nn.Module = field(default_factory=lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=0.1)

    @property
    def place(self) -> CheckpointPlace:
        return self.at or CheckpointPlace.below(self.run_folder.root)

    def folder_of(self, step: int) -> Path:
        """The one save of that step, committed or not."""
        return only(self.place.checkpoints, f"step-{step}-*")

    def steps(self) -> list[str]:
        """What is in the folder of checkpoints, without the save ids."""
        return sorted("-".join(name.split("-")[:2]) for name in names_in(self.place.checkpoints))

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.module, "dense_optimizer": self.optimizer}

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.module(torch.randn(8, 4)).square().sum().backward()
        self.optimizer.step()

    def values(self) -> dict[str, torch.Tensor]:
        moments = self.optimizer.state_dict()["state"]
        tensors = {
            f"moment.{number}.{name}": moment for number, held in moments.items() for name, moment in held.items()
        }
        return {name: tensor.clone() for name, tensor in {**self.module.state_dict(), **tensors}.items()}

    def checkpointer(self, mode: CheckpointMode = CheckpointMode.ASYNC, *, keep: int = 2, **more: Any) -> Checkpointer:
        return Checkpointer(
            self.place,
            lineage=LINEAGE,
            recorder=self.recorder,
            keep=keep,
            mode=mode,
            **{"commit_timeout_s": 20, **more},
        )

    def saved(self, *steps: int, keep: int = 9) -> None:
        """Train to each of the steps and save there, durably."""
        checkpointer = self.checkpointer(CheckpointMode.SYNC, keep=keep)
        for step in steps:
            self.step()
            checkpointer.save(step, self.state, progress_at(step))
        checkpointer.close()

    def points(self, name: str) -> list[dict[str, Any]]:
        """Attributes of the points of that name, read from the log."""
        lines = [json.loads(line) for path in sorted(self.events.rglob("*.jsonl")) for line in path.open()]
        return [line["attrs"] for line in lines if line.get("name") == name]

    def spans(self, phase: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for path in sorted(self.events.rglob("*.jsonl")) for line in path.open()]
        return [line for line in lines if line.get("phase") == phase and "end_ns" in line]

    @property
    def events(self) -> Path:
        return self.run_folder.events_dir


def reference() -> pa.Table:
    return reference_table(rows=HOLDOUT, labels=[1, 0, 0], logits=[0, -1, 2])


def only(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def job_in(root: Path, *, process: str = "trainer-a1-r0") -> Job:
    run_folder = RunFolder.of("movies", "r1", root).create()
    identity = ProcessIdentity(job="movies/r1", source=Source.TRAINER, process=process, attempt=1, rank=0, world_size=1)
    return Job(run_folder, Recorder(run_folder.events_dir, identity))
