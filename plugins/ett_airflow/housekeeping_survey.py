"""Reads what a refresh keeps on disk, in its checkpoint place and in the registry; changes nothing."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ett_airflow.chain_lock import ChainLock
from ett_airflow.generation import owner_of
from ett_airflow.housekeeping_facts import TRASH, JobFacts, RefreshFacts, RunFacts, SnapshotFacts, Stored
from ett_airflow.partitions import landed_days
from trainer.launch import JobState, LaunchError
from trainer.launch.job_folder import JobFolder, all_jobs, local_root, same_run_folder
from trainer.launch.local import observe
from trainer.run_folder import RunFolder, data_root, registry_root, runs_root
from trainer.spec import RefreshSpec, SpecError, load_run_spec
from trainer.storage import CheckpointPlace, StoragePath, UnsupportedStorageError, is_committed, names_in

IsRunning = Callable[[str, str], bool]
"""(dag_id, run_id) -> whether Airflow has that run queued or running."""

_NOT_RUNS = ("compile-cache",)
_SCRATCH = ("events", "logs", "work")
_ASIDE = re.compile(r"\..+-a\d+-[0-9a-f]{8}\.\d+")
"""Jobs that the launcher put aside, because their run folder was deleted and made anew."""


def survey(spec: RefreshSpec, activity: Activity, *, jobs: JobIndex, airflow_logs: Path | None = None) -> RefreshFacts:
    """Everything of one refresh.

    Raises:
        OSError: a folder of the refresh cannot be read.
    """
    root = runs_root() / spec.name
    return RefreshFacts(
        spec=spec,
        now_s=time.time(),
        runs=[_run(folder, activity) for folder in run_folders(root)],
        landed=landed_days(data_root(spec.data.root)),
        snapshots=_snapshots(registry_root() / spec.name),
        archives=[_used(path) for path in sorted((root / "compile-cache").glob("inductor-*.tar"))],
        jobs=[_job(job) for job in jobs.of(spec.name)],
        airflow_logs=_airflow_logs(airflow_logs, spec.name) if airflow_logs else (),
        leftovers=[measured(path) for path in _left(root, registry_root() / spec.name)],
    )


def run_folders(refresh_root: Path) -> list[RunFolder]:
    """The run folders below `ROOT/<refresh>`."""
    if not refresh_root.is_dir():
        return []
    paths = (path for path in sorted(refresh_root.iterdir()) if path.is_dir() and not path.is_symlink())
    return [RunFolder(path) for path in paths if not path.name.startswith(".") and path.name not in _NOT_RUNS]


class JobIndex:
    """This machine's jobs by refresh. Each job's registration is read once, the list of jobs at every question."""

    def __init__(self) -> None:
        self._refreshes: dict[str, str] = {}

    def of(self, refresh: str) -> list[JobFolder]:
        """The jobs of a refresh now."""
        found = []
        for job in all_jobs():
            if job.name not in self._refreshes:
                self._refreshes[job.name] = _refresh_of(job)
            if self._refreshes[job.name] == refresh:
                found.append(job)
        return found


class Activity:
    """Says why a run must not be touched now, asking anew each time.

    `is_running`: None where Airflow cannot be asked, as from a terminal; that nothing is touched within a day of its
    last write has to do there.
    """

    def __init__(self, refresh: str, jobs: JobIndex, is_running: IsRunning | None) -> None:
        self._refresh = refresh
        self._jobs = jobs
        self._is_running = is_running

    def of(self, folder: RunFolder) -> str:
        """Empty for a run that nothing works on."""
        for job in self._jobs.of(self._refresh):
            if job.registration().request.key.run == folder.run and not observe(job).terminal:
                return f"job {job.name} has not ended"
        holder = ChainLock(self._refresh).holder()
        run_id = owner_of(folder)
        if holder is not None and holder.run == folder.run and self._runs(holder.run_id, otherwise=True):
            return "it holds the chain's lock"
        return f"run {run_id} goes on in Airflow" if run_id and self._runs(run_id, otherwise=False) else ""

    def _runs(self, run_id: str, *, otherwise: bool) -> bool:
        return otherwise if self._is_running is None else self._is_running(self._refresh, run_id)


def measured(path: Path) -> Stored:
    """Size and newest write of a file, or of all files in a folder; links are not followed."""
    total, newest = 0, 0.0
    for file in _files(path):
        try:
            status = file.lstat()
        except FileNotFoundError:
            continue  # a file that was just replaced
        total, newest = total + status.st_size, max(newest, status.st_mtime)
    return Stored(path=path, bytes=total, written_s=newest or path.lstat().st_mtime)


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (Path(folder) / name for name in names)


def _run(folder: RunFolder, activity: Activity) -> RunFacts:
    stored, logs = measured(folder.root), _if_filled(folder.logs_dir)
    active = activity.of(folder)
    if not folder.spec_path.exists():
        return RunFacts(folder=folder, stored=stored, spec=None, logs=logs, active=active)
    try:
        spec = load_run_spec(folder.spec_path)
        place = CheckpointPlace.of(folder, spec.refresh)
        checkpoints, anchor = _at(place.checkpoints), _at(place.anchor)
        committed = anchor is not None and is_committed(place.anchor)
    except (SpecError, UnsupportedStorageError, OSError) as error:
        told = str(error).partition("\n")[0]
        return RunFacts(folder=folder, stored=stored, spec=None, logs=logs, active=active, unreadable=told)
    return RunFacts(
        folder=folder,
        stored=stored,
        spec=spec,
        checkpoints=checkpoints,
        anchor=anchor if committed else None,
        logs=logs,
        active=active,
    )


def _if_filled(path: Path) -> Stored | None:
    return measured(path) if path.is_dir() and any(path.iterdir()) else None


def _at(path: StoragePath) -> Stored | None:
    """What is in a checkpoint place; None for nothing. When it was written is known of files only."""
    if isinstance(path, Path):
        return _if_filled(path)
    if not names_in(path):
        return None
    return Stored(path=path, bytes=int(path.fs.du(path.path)), written_s=0.0)


def _snapshots(root: Path) -> SnapshotFacts:
    versions = root / "versions"
    if not versions.is_dir():
        return SnapshotFacts()
    found = [measured(path) for path in sorted(versions.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    try:
        return SnapshotFacts(versions=found, live=_live(root / "live"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return SnapshotFacts(versions=found, unreadable=f"what is live cannot be read ({error}): nothing is removed")


def _live(folder: Path) -> list[str]:
    """Versions that were live, in order; the last one is."""
    records = sorted(folder.glob("*.json"), key=lambda path: int(path.stem)) if folder.is_dir() else []
    return [str(json.loads(path.read_text(encoding="utf-8"))["snapshot"]) for path in records]


def _used(path: Path) -> Stored:
    """An archive by its last use: reading it counts, as far as the file system keeps that (relatime: once a day)."""
    status = path.stat()
    return Stored(path=path, bytes=status.st_size, written_s=max(status.st_atime, status.st_mtime))


def _refresh_of(job: JobFolder) -> str:
    try:
        return job.registration().request.key.refresh
    except (LaunchError, OSError, ValueError, KeyError, TypeError):
        return ""  # another release's: left alone


def _job(job: JobFolder) -> JobFacts:
    registration = job.registration()
    status = observe(job)
    stored = measured(job.root)
    folders = [path for name in _SCRATCH if (path := _if_filled(job.root / name))]
    return JobFacts(
        name=job.name,
        run=registration.request.key.run,
        stored=stored,
        scratch=folders,
        ended=status.terminal and status.state is not JobState.LOST and status.ended_ns is not None,
        orphan=not same_run_folder(registration),
    )


def job_is_orphan(path: StoragePath) -> bool:
    """Whether the run folder of the job at `path` is gone, or is another of the same name."""
    return not same_run_folder(JobFolder(Path(str(path))).registration())


def _airflow_logs(base: Path, refresh: str) -> Sequence[Stored]:
    folder = base / f"dag_id={refresh}"
    if not folder.is_dir():
        return ()
    return [measured(path) for path in sorted(folder.iterdir()) if path.name.startswith("run_id=")]


def _left(*roots: Path) -> Iterator[Path]:
    """What an interrupted removal left half deleted."""
    for root in roots:
        trash = root / TRASH
        if trash.is_dir():
            yield from sorted(trash.iterdir())


def left_on_machine() -> list[Stored]:
    """The same among this machine's jobs, and jobs of run folders that were made anew; of whatever refresh."""
    jobs = local_root() / "jobs"
    aside = sorted(path for path in jobs.iterdir() if _ASIDE.fullmatch(path.name)) if jobs.is_dir() else []
    return [measured(path) for path in [*_left(jobs), *aside]]
