"""What a job is: its key, request, handle and status, as plain values that survive a trip through JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ett_reports.events import Cause
from trainer.launch.errors import InvalidRequestError
from trainer.run_folder import RunFolder

REQUEST_VERSION = 1

EXIT_PREEMPTED = 75
"""A job that saved its checkpoint after SIGTERM and wants to be resubmitted (EX_TEMPFAIL)."""
EXIT_BAD_DATA = 65
"""A job that will fail again on the same data (EX_DATAERR)."""
EXIT_HUNG = 70
"""A rank whose own watchdog found that it makes no progress (EX_SOFTWARE)."""

_SLUG_LENGTH = 45  # with the attempt and the hash a name stays within Kubernetes' 63 characters


class JobState(StrEnum):
    """The life of a job: REGISTERED -> PENDING -> RUNNING -> one of the terminal states."""

    REGISTERED = "registered"
    """Written down, but nothing was started: its submitter is about to, or died. Submitting the key again starts it."""
    PENDING = "pending"
    """It waits for its devices."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Nobody supervises it any more: the supervisor or its machine died. Processes may survive until it is reaped."""

    @property
    def terminal(self) -> bool:
        return self not in (JobState.REGISTERED, JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class JobKey:
    """What makes a submission unique; submitting one key twice gives the same job.

    Attributes:
        attempt: 1, 2, ...; a new attempt is a new job.
    """

    refresh: str
    run: str
    task: str
    attempt: int = 1

    def __post_init__(self) -> None:
        if self.attempt < 1:
            raise InvalidRequestError(f"attempt {self.attempt} of task {self.task!r}: attempts are numbered from 1")
        if not (self.refresh and self.run and self.task):
            raise InvalidRequestError(f"{self!r}: refresh, run and task must all be named")

    @property
    def name(self) -> str:
        """A stable name, valid as a folder, a Slurm job and a Kubernetes object (at most 63 of `[a-z0-9-]`).

        >>> JobKey(refresh="movies", run="2026-11-28", task="train", attempt=2).name
        'movies-2026-11-28-train-a2-c3291b45'
        """
        exact = "\x00".join((self.refresh, self.run, self.task, str(self.attempt)))
        digest = hashlib.sha256(exact.encode()).hexdigest()[:8]
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.refresh}-{self.run}-{self.task}".lower()).strip("-")
        return f"{_shortened(slug)}-a{self.attempt}-{digest}"

    def retry(self, attempt: int) -> JobKey:
        """The same task's key in another attempt."""
        return JobKey(refresh=self.refresh, run=self.run, task=self.task, attempt=attempt)

    def to_dict(self) -> dict[str, Any]:
        return {"refresh": self.refresh, "run": self.run, "task": self.task, "attempt": self.attempt}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobKey:
        return cls(refresh=data["refresh"], run=data["run"], task=data["task"], attempt=data["attempt"])


def _shortened(slug: str) -> str:
    """The slug's head and tail: the tail tells runs and tasks of one refresh apart."""
    if len(slug) <= _SLUG_LENGTH:
        return slug
    tail = _SLUG_LENGTH * 2 // 3
    return f"{slug[: _SLUG_LENGTH - tail - 2].rstrip('-')}--{slug[-tail:].lstrip('-')}"


@dataclass(frozen=True)
class JobHandle:
    """Where a submitted job is found again, from any process: `str(handle)` and `JobHandle.parse` are inverse."""

    scheduler: str
    id: str
    run_folder_url: str

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.id}#{self.run_folder_url}"

    @classmethod
    def parse(cls, text: str) -> JobHandle:
        scheduler, separator, rest = text.partition("://")
        job_id, hash_mark, url = rest.partition("#")
        if not (separator and hash_mark and scheduler and job_id):
            raise InvalidRequestError(f"{text!r} is no job handle; expected SCHEDULER://ID#RUN_FOLDER")
        return cls(scheduler, job_id, url)

    def to_dict(self) -> dict[str, str]:
        return {"scheduler": self.scheduler, "id": self.id, "run_folder_url": self.run_folder_url}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> JobHandle:
        return cls(data["scheduler"], data["id"], data["run_folder_url"])


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one replica needs."""

    cpus: int = 1
    gpus: int = 0
    memory_mb: int = 1024

    def to_dict(self) -> dict[str, int]:
        return {"cpus": self.cpus, "gpus": self.gpus, "memory_mb": self.memory_mb}


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """All that a launcher needs to run one attempt.

    Attributes:
        command: module and its arguments, run as `python -m` by the interpreter of its environment (`interpreters.py`).
        replicas: ranks; each is one process with RANK, LOCAL_RANK and WORLD_SIZE set.
        devices: training devices held over all replicas (a CPU rank counts as one). A job with devices queues
            for them and its attempt is recorded in the event log (ett-metric section 8); 0 for CPU jobs.
        grace_s: seconds between SIGTERM and SIGKILL when cancelled or preempted.
        peer_grace_s: the same for ranks whose peer has failed: they wait in a collective and cannot save.
        hang_timeout_s: silence of every rank's event files after which the job is killed as hung; None to wait forever.
        standby_idle_s: have the ranks forked from a warm standby, which stays this long after its last job (scheduler
            `local`); None for new processes. Not for jobs with GPUs: no process is forked that may have used one.
    """

    key: JobKey
    command: tuple[str, ...]
    run_folder: RunFolder
    replicas: int = 1
    devices: int = 0
    resources: Resources = field(default_factory=Resources)
    env: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 30.0
    peer_grace_s: float = 5.0
    hang_timeout_s: float | None = None
    standby_idle_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))
        object.__setattr__(self, "env", dict(self.env))
        if not self.command or not all(isinstance(part, str) for part in self.command):
            raise InvalidRequestError(f"job {self.key.name}: command must be a module and its arguments, as strings")
        if self.replicas < 1 or self.devices < 0:
            raise InvalidRequestError(
                f"job {self.key.name}: replicas={self.replicas}, devices={self.devices}; "
                "at least one replica and no negative number of devices"
            )
        if self.hang_timeout_s is not None and self.hang_timeout_s <= 0:
            raise InvalidRequestError(f"job {self.key.name}: hang_timeout_s={self.hang_timeout_s} must be positive")
        if self.standby_idle_s is not None and not (self.standby_idle_s > 0 and self.resources.gpus == 0):
            raise InvalidRequestError(
                f"job {self.key.name}: standby_idle_s={self.standby_idle_s} must be positive, and None with GPUs "
                f"(gpus={self.resources.gpus}): set optimizations.warm_standby: false there"
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": REQUEST_VERSION,
            "key": self.key.to_dict(),
            "command": list(self.command),
            "run_folder": self.run_folder.url,
            "replicas": self.replicas,
            "devices": self.devices,
            "resources": self.resources.to_dict(),
            "env": dict(self.env),
            "grace_s": self.grace_s,
            "peer_grace_s": self.peer_grace_s,
            "hang_timeout_s": self.hang_timeout_s,
            "standby_idle_s": self.standby_idle_s,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobRequest:
        if data.get("version") != REQUEST_VERSION:
            raise InvalidRequestError(
                f"job request of version {data.get('version')!r}, this code reads {REQUEST_VERSION}; "
                "let the job end with the release that submitted it, then cancel or resubmit"
            )
        return cls(
            key=JobKey.from_dict(data["key"]),
            command=tuple(data["command"]),
            run_folder=RunFolder.open(data["run_folder"]),
            replicas=data["replicas"],
            devices=data["devices"],
            resources=Resources(**data["resources"]),
            env=data["env"],
            grace_s=data["grace_s"],
            peer_grace_s=data["peer_grace_s"],
            hang_timeout_s=data["hang_timeout_s"],
            standby_idle_s=data.get("standby_idle_s"),  # not in requests of releases before it
        )


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """One rank's process; `exit_code` is negative for a signal, None while it runs."""

    rank: int
    pid: int
    pid_started: float
    exit_code: int | None = None
    ended_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "pid": self.pid,
            "pid_started": self.pid_started,
            "exit_code": self.exit_code,
            "ended_ns": self.ended_ns,
        }


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What a launcher knows of a job. All instants are Unix nanoseconds.

    Attributes:
        exit_code: of the rank that decided the outcome; negative for a signal.
        message: for people: what the job wrote to `$ETT_ERROR_FILE`, else its last lines on stderr.
        details: the `details` of the same file.
        allocated_ns: when its capacity was held; None for a job still queued.
        started_ns: when its ranks were started.
    """

    state: JobState
    attempt: int
    exit_code: int | None = None
    cause: Cause | None = None
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    submitted_ns: int | None = None
    allocated_ns: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    ranks: tuple[RankStatus, ...] = ()

    @property
    def terminal(self) -> bool:
        return self.state.terminal

    def to_dict(self) -> dict[str, Any]:
        return {
            "state": str(self.state),
            "attempt": self.attempt,
            "exit_code": self.exit_code,
            "cause": None if self.cause is None else str(self.cause),
            "message": self.message,
            "details": dict(self.details),
            "submitted_ns": self.submitted_ns,
            "allocated_ns": self.allocated_ns,
            "started_ns": self.started_ns,
            "ended_ns": self.ended_ns,
            "ranks": [rank.to_dict() for rank in self.ranks],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JobStatus:
        return cls(
            state=JobState(data["state"]),
            attempt=data["attempt"],
            exit_code=data["exit_code"],
            cause=None if data["cause"] is None else Cause(data["cause"]),
            message=data["message"],
            details=data["details"],
            submitted_ns=data["submitted_ns"],
            allocated_ns=data["allocated_ns"],
            started_ns=data["started_ns"],
            ended_ns=data["ended_ns"],
            ranks=tuple(RankStatus(**rank) for rank in data["ranks"]),
        )
