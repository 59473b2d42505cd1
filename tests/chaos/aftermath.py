"""What must hold after a job under attack has completed, whatever befell it: every breach, in words, by kind."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from chaos_job import ChaosJob

from ett_reports.events import L1, Component
from ett_reports.levels import reduce
from ett_reports.log import ProcessLog
from ett_reports.reader import read_log
from ett_reports.report import Failure, JobReport
from trainer.checkpoint import CheckpointError, CheckpointRef, read_reference, verify
from trainer.checkpoint.restore import MODEL
from trainer.checkpoint.unpickling import RestrictedPlanner, RestrictedReader
from trainer.launch import JobState
from trainer.storage import MANIFEST_NAME

CLOCKS_NS = 50_000_000
"""How far two readings of one instant may lie apart that went through two clocks of this machine."""

INDUCTOR_FOLDER = "torchinductor_"
"""What torch keeps in the temporary folder for every later process: the C++ headers it has compiled once."""

Rows = tuple[tuple[int, int, int, int], ...]
"""(file, row group, first row, row after the last) of each part of a batch."""


@dataclass
class Aftermath:
    """The breaches of each promise; all empty when nothing was lost. `lost_s`: seconds of recovery by attempt."""

    bits: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    account: list[str] = field(default_factory=list)
    lost_s: dict[int, float] = field(default_factory=dict)

    @property
    def breaches(self) -> list[str]:
        return [*self.bits, *self.rows, *self.checkpoints, *self.leftovers, *self.account]


def examine(job: ChaosJob, undisturbed: ChaosJob, *, damaged: bool = False) -> Aftermath:
    """Everything at once, so that a failing case shows all that is wrong with it.

    damaged: a committed checkpoint was damaged on purpose, so that one may have been passed over.
    """
    found = Aftermath()
    report = reduce(read_log(job.folder.events_dir))
    found.bits += different_bits(job, undisturbed)
    found.rows += misread_rows(job, undisturbed, report)
    found.checkpoints += half_checkpoints(job, damaged=damaged)
    found.leftovers += [*orphans(job), *temporary_files(job)]
    found.account += misaccounted(job, report)
    found.lost_s = {failure.attempt: failure.recovery_ns / 1e9 for failure in report.failures}
    return found


# -- bits ---------------------------------------------------------------------------------------------------------


def whole_state(anchor: Path) -> dict[str, torch.Tensor]:
    """Every tensor of an anchor, whole, by name: tables, dense parameters, both optimizers."""
    manifest = verify(CheckpointRef.open(anchor))
    state: dict[str, Any] = {
        name: torch.empty(record.shape, dtype=getattr(torch, record.dtype)) for name, record in manifest.tensors.items()
    }
    reader, planner = RestrictedReader(anchor, manifest), RestrictedPlanner(anchor)
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
    return state


def different_bits(job: ChaosJob, undisturbed: ChaosJob) -> Iterator[str]:
    """Tensors and predictions on the holdout that are not the undisturbed run's, to the last bit."""
    yield from different_tensors(whole_state(job.folder.anchor_dir), whole_state(undisturbed.folder.anchor_dir))
    if not read_reference(job.folder.anchor_dir).equals(read_reference(undisturbed.folder.anchor_dir)):
        yield "bits: predictions on the holdout differ"


def different_tensors(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """By name, with how many elements differ in value; those that differ in bits alone (-0, NaN) count as well."""
    assert any(name.startswith(f"{MODEL}.") for name in theirs)
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield f"bits: {name} is in one of the anchors only"
    for name in sorted(ours.keys() & theirs.keys()):
        if _bytes(ours[name]) != _bytes(theirs[name]):
            unequal = int((ours[name] != theirs[name]).sum())
            yield f"bits: {name}: {unequal} of {ours[name].numel()} elements differ"


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


# -- rows ---------------------------------------------------------------------------------------------------------


def misread_rows(job: ChaosJob, undisturbed: ChaosJob, report: JobReport) -> Iterator[str]:
    """Rows that count twice or not at all.

    The undisturbed run reads each planned row once. Whatever an attempt was handed as step S's batch must be that run's
    batch of step S, on every rank; so whichever attempt's step S ends up in the weights, its rows are the right ones.
    Attempts begin where a checkpoint ends, and the last one reads to the end of the stream.
    """
    right = steps_of(undisturbed, attempt=1, first=1)
    yield from _not_once(undisturbed, right)
    for status in job.attempts:
        first = first_step(job, status.attempt)
        for (rank, step), rows in steps_of(job, attempt=status.attempt, first=first).items():
            if rows != right.get((rank, step)):
                wanted = right.get((rank, step))
                yield f"rows: attempt {status.attempt} gave rank {rank} {rows} as step {step}, not {wanted}"
                break
    if report.high_water_mark != job.planned:
        yield f"rows: the log's high-water mark is {report.high_water_mark} of {job.planned} planned samples"
    progress = CheckpointRef.open(job.folder.anchor_dir).manifest().progress
    if progress.cursor != job.planned or any(interval.rows for interval in progress.remaining):
        yield f"rows: the anchor is at sample {progress.cursor} of {job.planned} and has {progress.remaining} left"


def first_step(job: ChaosJob, attempt: int) -> int:
    """The number of the first step that an attempt takes: the one after its checkpoint's."""
    restored = [dict(point.attrs) for point in points_of(job, "restored", attempt=attempt)]
    return int(restored[-1]["step"]) + 1 if restored else 1


def steps_of(job: ChaosJob, *, attempt: int, first: int) -> dict[tuple[int, int], Rows]:
    """(rank, step) -> the rows that the rank was handed as that step's batch, by the witness in the rank."""
    told: dict[tuple[int, int], Rows] = {}
    for path in sorted(job.testimony.glob(f"a{attempt}-r*.jsonl")):
        rank = int(path.stem.partition("-r")[2])
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        newest = max((line["reader"] for line in lines), default=0)
        batches = [line["rows"] for line in lines if line["reader"] == newest]
        for step, rows in enumerate(batches, start=first):
            told[rank, step] = tuple(tuple(part) for part in rows)
    return told


def _not_once(undisturbed: ChaosJob, steps: dict[tuple[int, int], Rows]) -> Iterator[str]:
    parts = sorted(part for rows in steps.values() for part in rows)
    total = sum(stop - start for _, _, start, stop in parts)
    if total != undisturbed.planned:
        yield f"rows: the undisturbed run read {total} of {undisturbed.planned} planned rows"
    for before, after in itertools.pairwise(parts):
        if before[:2] == after[:2] and after[2] < before[3]:
            yield f"rows: the undisturbed run read {before} and {after}, which overlap"


# -- checkpoints --------------------------------------------------------------------------------------------------


def half_checkpoints(job: ChaosJob, *, damaged: bool) -> Iterator[str]:
    """Checkpoints that were taken up or are left though they are not whole."""
    for status in job.attempts:
        for point in points_of(job, "checkpoint_rejected", attempt=status.attempt):
            if not damaged:
                yield f"checkpoints: attempt {status.attempt} met a damaged one: {dict(point.attrs)}"
    folders = job.folder.checkpoints_dir
    for folder in [*(sorted(folders.iterdir()) if folders.is_dir() else ()), job.folder.anchor_dir]:
        try:
            manifest = verify(CheckpointRef.open(folder))
        except CheckpointError as error:
            yield f"checkpoints: {folder.name} is left and not whole: {error}"
            continue
        for path in folder.iterdir():
            if path.name not in (MANIFEST_NAME, *manifest.files):
                yield f"checkpoints: {folder.name}/{path.name} belongs to no checkpoint"


# -- what is left -------------------------------------------------------------------------------------------------


def orphans(job: ChaosJob) -> Iterator[str]:
    """Processes of the job's attempts that live on."""
    marks = {f"ETT_JOB={job.key(status.attempt).name}".encode() for status in job.attempts}
    for process in psutil.process_iter():
        try:
            environment = set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"))
            if marks & environment and process.status() != psutil.STATUS_ZOMBIE:
                yield f"leftovers: process {process.pid} lives on: {' '.join(process.cmdline())[:200]}"
        except (OSError, psutil.Error):
            continue


def temporary_files(job: ChaosJob) -> Iterator[str]:
    """Files and folders that were to be renamed or removed: in the run folder, and in the temporary folder."""
    for path in sorted(job.folder.root.rglob("*")):
        if path.name.endswith(".tmp") or (path.name.startswith(".") and path.name not in (".token", ".metadata")):
            yield f"leftovers: {path.relative_to(job.folder.root)}"
    for path in sorted(job.temporary.iterdir()):
        if not path.name.startswith(INDUCTOR_FOLDER):
            yield f"leftovers: {path} in the temporary folder"


# -- the account --------------------------------------------------------------------------------------------------


def misaccounted(job: ChaosJob, report: JobReport) -> Iterator[str]:
    """Where the ETT report does not add up, or does not name what was lost to what."""
    cross = sum(ns for row in report.cross.values() for ns in row.values())
    if not report.wall_ns == cross == sum(report.l1.values()) == sum(s.duration_ns for s in report.segments):
        yield f"account: the cross table sums to {cross} ns, wall time is {report.wall_ns} ns"
    told = (job.attempts[-1].ended_ns or 0) - (job.attempts[0].submitted_ns or 0)
    if abs(told - report.wall_ns) > CLOCKS_NS:
        yield f"account: the launcher saw {told} ns from first submission to end, the report {report.wall_ns} ns"
    ended = [(status.attempt, status.cause) for status in job.attempts if status.state is not JobState.SUCCEEDED]
    failures = [(failure.attempt, failure.cause) for failure in report.failures]
    if ended != failures:
        yield f"account: attempts ended {ended}, the report names {failures}"
    yield from _unnamed_loss(report)


def _unnamed_loss(report: JobReport) -> Iterator[str]:
    recovery = _union(report.failures)
    if abs(recovery - report.l1[L1.RECOVERY]) > CLOCKS_NS:
        yield f"account: failures cost {recovery} ns, recovery in the table is {report.l1[L1.RECOVERY]} ns"
    for failure in report.failures:
        if not failure.recovered:
            yield f"account: attempt {failure.attempt} counts as not recovered"
    unnamed = sum(row[Component.UNATTRIBUTED] for row in report.cross.values())
    if unnamed > report.wall_ns / 50:
        yield f"account: {unnamed} ns of {report.wall_ns} have no name"


def _union(failures: tuple[Failure, ...]) -> int:
    """Time in any recovery: those of attempts that never trained overlap."""
    total, reached = 0, 0
    for failure in sorted(failures, key=lambda failure: failure.start_ns):
        start = max(failure.start_ns, reached)
        total += max(0, failure.end_ns - start)
        reached = max(reached, failure.end_ns)
    return total


def points_of(job: ChaosJob, name: str, *, attempt: int, rank: int = 0) -> list[Any]:
    """Every such point of one rank of an attempt."""
    return [point for process in trainers_of(job, attempt, rank) for point in process.points if point.name == name]


def trainers_of(job: ChaosJob, attempt: int, rank: int) -> list[ProcessLog]:
    return [
        process
        for process in read_log(job.folder.events_dir).processes
        if (process.identity.rank, process.identity.attempt) == (rank, attempt)
    ]
