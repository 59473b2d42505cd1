"""A finished run to publish: generated data, a model trained on one rank, its anchor and its reference."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from publish.scoring import logits_of
from trainer.checkpoint import Checkpointer, CheckpointMode, Lineage, Progress, RankProgress, reference_table
from trainer.dpp.batch import sparse_keys, to_tensors
from trainer.dpp.cursor import steps_for
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import PartitionReader, read_holdout
from trainer.dpp.scan import unchecked_plan
from trainer.dpp.sources.generated import Generator
from trainer.model.factory import build_model
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, RunInfo, RunSpec, RunType, Window, dump_run_spec
from trainer.storage import CheckpointPlace

NEWEST = date(2026, 1, 10)
HASH = "splitmix64"
LIST = "list<element: int64 not null>"


def refresh_spec(**sections: Any) -> RefreshSpec:
    columns = [
        {"name": "label", "type": "float32", "role": "label"},
        {"name": "event_time", "type": "timestamp[us, tz=UTC]", "role": "event_time"},
        {"name": "user_id", "type": "int64", "role": "entity"},
        {"name": "age", "type": "float32", "role": "dense", "min": 0, "max": 100, "transform": "log1p"},
        {"name": "item", "type": "int64", "role": "categorical", "num_embeddings": 50},
        {
            "name": "recent",
            "type": LIST,
            "role": "jagged",
            "num_embeddings": 40,
            "hashing": "splitmix64",
            "max_length": 5,
        },
    ]
    return RefreshSpec.model_validate(
        {
            "version": 1,
            "name": "movies",
            "data": {"root": "movies", "holdout": {"fraction": 0.3, "salt": 1}},
            "contract": {"columns": columns},
            "model": {"embedding_dim": 4, "dense_arch": [8, 4], "over_arch": [8]},
            "training": {"batch_size": 64},
            "publishing": {"min_holdout_auc": 0.0},
            **sections,
        }
    )


def run_spec(run: str, *, end: date = NEWEST, **sections: Any) -> RunSpec:
    window = Window(start=date(end.year, end.month, end.day - 1), end=end)
    return RunSpec(refresh=refresh_spec(**sections), run=RunInfo(run=run, window=window, run_type=RunType.SCHEDULED))


def land(home: Path, days: int = 3) -> Path:
    root = home / "data" / "movies"
    Generator(refresh_spec().contract, rows_per_day=400, seed=1).land(root, date(2026, 1, 9), days)
    return root


def finished_run(
    home: Path, spec: RunSpec, *, reference: Callable[[dict[str, Any]], dict[str, Any]] = lambda scored: scored
) -> RunFolder:
    """A run folder as training leaves it. `reference` may change what the trainer says it predicted."""
    folder = RunFolder.of(spec.refresh.name, spec.run.run, home / "runs").create()
    dump_run_spec(spec, folder.spec_path)
    plan = unchecked_plan(spec.refresh, home / "data" / spec.refresh.data.root, spec.run.window)
    plan.dump(folder.plan_path)
    module = build_model(spec.refresh, device="cpu")
    _train(module, spec.refresh, plan)
    save_anchor(folder, spec, module, reference_table(**reference(_scored(module.eval(), spec.refresh, plan))))
    return folder


def save_anchor(
    folder: RunFolder, spec: RunSpec, module: torch.nn.Module, reference: pa.Table, *, commit_timeout_s: float = 600.0
) -> None:
    """The end of training: the model and what it predicted, where the spec says anchors go."""
    window = (spec.run.window.start.isoformat(), spec.run.window.end.isoformat())
    rows = ReadPlan.load(folder.plan_path).train_rows
    progress = Progress(step=5, cursor=rows, ranks=(RankProgress(),), world_size=1, window=window)
    identity = ProcessIdentity(job=folder.job, source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0)
    with Recorder(folder.events_dir, identity) as recorder:
        saver = Checkpointer(
            CheckpointPlace.of(folder, spec.refresh),
            lineage=Lineage.of(spec),
            recorder=recorder,
            keep=1,
            mode=CheckpointMode.ASYNC,
            commit_timeout_s=commit_timeout_s,
        )
        saver.save_anchor(5, {"model": module}, progress, reference)
        saver.close()


def _train(module: torch.nn.Module, spec: RefreshSpec, plan: ReadPlan) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    size = spec.training.batch_size
    steps = steps_for(plan.train_rows, size)
    with PartitionReader(plan, spec.contract, plan.intervals(), batch_size=size, steps=steps) as reader:
        for host in reader:
            batch = to_tensors(host, sparse_keys(spec))
            optimizer.zero_grad()
            logits = module(batch.dense, batch.sparse)
            torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
            optimizer.step()


def _scored(module: torch.nn.Module, spec: RefreshSpec, plan: ReadPlan) -> dict[str, Any]:
    rows, labels, logits = [], [], []
    with read_holdout(plan, spec.contract, rank=0, world_size=1, batch_size=50) as reader:
        for host in reader:
            rows.extend(host.consumed)
            labels.append(host.labels)
            logits.append(logits_of(module, spec, host))
    return {"rows": rows, "labels": np.concatenate(labels), "logits": np.concatenate(logits)}
