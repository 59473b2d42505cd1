"""A local job on disk: the folder that its submitter, supervisor, ranks and followers meet in."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.atomic_file import sync
from trainer.launch.errors import JobNotFoundError, RecordWriteError
from trainer.launch.file_lock import FileLock, locked_elsewhere
from trainer.launch.jobs import JobKey, JobRequest, JobStatus
from trainer.launch.records import read_record, write_record
from trainer.run_folder import RunFolder, home

STATUS_VERSION = 1
_STALE_STAGING_S = 3600.0


def local_root() -> Path:
    """Where this machine keeps its own: jobs, slots, ports."""
    return home() / "local"


@dataclass(frozen=True)
class Host:
    """Which machine, and which boot of it: process ids and locks mean nothing beyond."""

    name: str
    boot_id: str

    @classmethod
    def here(cls) -> Host:
        boot_id = Path("/proc/sys/kernel/random/boot_id")
        return cls(socket.gethostname(), boot_id.read_text().strip() if boot_id.exists() else "")

    def shares_processes_with(self, other: Host) -> bool:
        """A recreated container has a new name on the same boot; a rebooted machine its old name on a new one."""
        return self.name == other.name or self.boot_id == other.boot_id


@dataclass(frozen=True)
class Registration:
    """What was written down before anything started."""

    request: JobRequest
    submitted_ns: int
    host: Host
    run_folder_token: str


@dataclass(frozen=True)
class StatusRecord:
    """The job's status with the supervisor that wrote it."""

    status: JobStatus
    supervisor_pid: int
    supervisor_started: float
    boot_id: str


@dataclass(frozen=True)
class JobFolder:
    """Paths and records of `local/jobs/<name>`."""

    root: Path

    @classmethod
    def of(cls, name: str) -> JobFolder:
        return cls(local_root() / "jobs" / name)

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def exists(self) -> bool:
        return self._request_path.exists()

    @property
    def _request_path(self) -> Path:
        return self.root / "request.json"

    @property
    def _status_path(self) -> Path:
        return self.root / "status.json"

    @property
    def lock_path(self) -> Path:
        return self.root / "job.lock"

    @property
    def events_dir(self) -> Path:
        return self.root / "events"

    @property
    def errors_dir(self) -> Path:
        return self.root / "errors"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"

    @property
    def work_dir(self) -> Path:
        return self.root / "work"

    @property
    def cancel_path(self) -> Path:
        """Exists once somebody asked for the job's end."""
        return self.root / "cancel"

    @property
    def preempt_path(self) -> Path:
        """Exists once somebody asked the ranks to save and leave."""
        return self.root / "preempt"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "supervisor.log"

    def lock(self) -> FileLock:
        """Held by the job's supervisor for as long as it lives, or by who ends a job without one."""
        return FileLock(self.lock_path)

    @property
    def supervised(self) -> bool:
        return locked_elsewhere(self.lock_path)

    def registration(self) -> Registration:
        """Raises JobNotFoundError if nothing was ever submitted under this name."""
        record = read_record(self._request_path)
        if record is None:
            raise JobNotFoundError(self.name, str(self.root.parent))
        return Registration(
            request=JobRequest.from_dict(record["request"]),
            submitted_ns=record["submitted_ns"],
            host=Host(record["host"], record["boot_id"]),
            run_folder_token=record["run_folder_token"],
        )

    def status(self) -> StatusRecord | None:
        """The last written status; None before a supervisor took the job."""
        record = read_record(self._status_path)
        if record is None:
            return None
        supervisor = record["supervisor"]
        return StatusRecord(
            status=JobStatus.from_dict(record["status"]),
            supervisor_pid=supervisor["pid"],
            supervisor_started=supervisor["started"],
            boot_id=supervisor["boot_id"],
        )

    def write_status(self, status: JobStatus) -> None:
        """To be called by the holder of the job's lock alone."""
        import psutil  # heavy for those who only read

        supervisor: dict[str, Any] = {
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "boot_id": Host.here().boot_id,
        }
        write_record(
            self._status_path, {"version": STATUS_VERSION, "supervisor": supervisor, "status": status.to_dict()}
        )

    def ask(self, path: Path) -> None:
        """Leave a request (cancel, preempt) for the supervisor."""
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise RecordWriteError(str(path), error) from error


def all_jobs() -> Iterator[JobFolder]:
    """Every registered job of this machine, by name."""
    jobs = local_root() / "jobs"
    if jobs.is_dir():
        for path in sorted(jobs.iterdir()):
            folder = JobFolder(path)
            if not path.name.startswith(".") and folder.exists:
                yield folder


def attempts_of(key: JobKey) -> Iterator[JobFolder]:
    """The registered attempts before `key`'s, oldest first."""
    for attempt in range(1, key.attempt):
        folder = JobFolder.of(key.retry(attempt).name)
        if folder.exists:
            yield folder


def register(request: JobRequest, *, prepare: Callable[[JobFolder, int], None]) -> JobFolder:
    """Create the job's folder in one step; exactly one of several submitters makes it, all get it.

    Args:
        prepare: fills the folder before it becomes visible, given the submission instant (Unix ns).
    Raises:
        RecordWriteError: the folder could not be written; nothing is registered.
    """
    folder = JobFolder.of(request.key.name)
    jobs = folder.root.parent
    staging = JobFolder(jobs / f".staging-{uuid.uuid4().hex}")
    try:
        local_root().parent.mkdir(parents=True, exist_ok=True)
        local_root().mkdir(mode=0o700, exist_ok=True)
        jobs.mkdir(mode=0o700, exist_ok=True)
        _sweep_staging(jobs)
        _fill(staging, request, prepare)
        _publish(staging, folder)
        sync(jobs)
    except OSError as error:
        raise RecordWriteError(str(folder.root), error) from error
    finally:
        shutil.rmtree(staging.root, ignore_errors=True)
    return folder


def _fill(staging: JobFolder, request: JobRequest, prepare: Callable[[JobFolder, int], None]) -> None:
    submitted_ns = time.time_ns()
    for path in (staging.root, staging.events_dir, staging.errors_dir, staging.work_dir):
        path.mkdir(mode=0o700)
    prepare(staging, submitted_ns)
    host = Host.here()
    write_record(
        staging._request_path,
        {
            "request": request.to_dict(),
            "submitted_ns": submitted_ns,
            "host": host.name,
            "boot_id": host.boot_id,
            "run_folder_token": run_folder_token(request.run_folder),
        },
    )


def _publish(staging: JobFolder, folder: JobFolder) -> None:
    """A rename onto a filled folder fails: that is how the second of two submitters learns that it is one."""
    try:
        staging.root.rename(folder.root)
    except OSError:
        if not folder.exists:
            raise


def _sweep_staging(jobs: Path) -> None:
    """Remove what submitters left that were killed while they registered."""
    for path in jobs.glob(".staging-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_STAGING_S:
                shutil.rmtree(path, ignore_errors=True)


def run_folder_token(run_folder: RunFolder) -> str:
    """What tells this run folder from one of the same name that was deleted: written once, by the first job in it."""
    path = run_folder.create().root / ".token"
    aside = path.with_name(f".token.{uuid.uuid4().hex}")
    try:
        aside.write_text(aside.suffix[1:])
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(aside)  # exclusive, and never seen half-written
        return path.read_text()
    except OSError as error:
        raise RecordWriteError(str(path), error) from error
    finally:
        aside.unlink(missing_ok=True)


def same_run_folder(registration: Registration) -> bool:
    """False for a job whose run folder was deleted since; a new run of that name must not see the old one's outcome."""
    path = registration.request.run_folder.root / ".token"
    return path.exists() and path.read_text() == registration.run_folder_token
