"""What housekeeping knows of a refresh: everything it keeps on disk, as values that the rules decide over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path

from ett_airflow.anchors import Anchor
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RefreshSpec, RunSpec
from trainer.storage import StoragePath

DAY_S = 86400.0
TRASH = ".doomed"
"""Where a thing is moved before it is deleted: beside its like, under a name that nobody lists."""


class Kind(StrEnum):
    """What can be removed."""

    RUN = "run folder"
    CHECKPOINTS = "step checkpoints"
    ANCHOR = "anchor"
    LOGS = "logs"
    JOB = "job folder"
    JOB_SCRATCH = "job scratch"
    COMPILE_ARCHIVE = "compile archive"
    SNAPSHOT = "snapshot"
    AIRFLOW_LOGS = "Airflow task logs"
    LEFTOVER = "leftover"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Something on disk or in a store. `bytes` and `written_s` (Unix s, newest write) are of all files in it."""

    path: StoragePath
    bytes: int
    written_s: float

    def age_days(self, now_s: float) -> float:
        return max(0.0, now_s - self.written_s) / DAY_S


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run folder.

    Attributes:
        spec: None for a run that was never resolved; see `unreadable`.
        unreadable: why the resolved spec, or the place of the checkpoints, cannot be read; such a run is left alone.
        checkpoints, anchor: what is at the run's checkpoint place, in the run folder or elsewhere.
        active: why the run must not be touched.
    """

    folder: RunFolder
    stored: Stored
    spec: RunSpec | None
    unreadable: str = ""
    checkpoints: Stored | None = None
    anchor: Stored | None = None
    logs: Stored | None = None
    active: str = ""

    @property
    def as_anchor(self) -> Anchor | None:
        """Its committed anchor."""
        return Anchor(self.folder, self.spec) if self.spec is not None and self.anchor is not None else None

    @property
    def is_trial(self) -> bool:
        return self.spec is not None and self.spec.run.purpose is Purpose.TUNING


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job folder of the local scheduler.

    `ended`: it can never run again; `orphan`: its run folder is gone; `scratch`: what the run folder has copies of.
    """

    name: str
    run: str
    stored: Stored
    scratch: Sequence[Stored]
    ended: bool
    orphan: bool


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """The versions of a refresh, and which were live, oldest first; the last one is."""

    versions: Sequence[Stored] = ()
    live: Sequence[str] = ()
    unreadable: str = ""


@dataclass(frozen=True, kw_only=True)
class RefreshFacts:
    """All that housekeeping may look at of one refresh."""

    spec: RefreshSpec
    now_s: float
    runs: Sequence[RunFacts] = ()
    landed: Sequence[date] = ()
    snapshots: SnapshotFacts = field(default_factory=SnapshotFacts)
    archives: Sequence[Stored] = ()
    jobs: Sequence[JobFacts] = ()
    airflow_logs: Sequence[Stored] = ()
    leftovers: Sequence[Stored] = ()


@dataclass(frozen=True, kw_only=True)
class Expired:
    """One thing to remove, why, and how many bytes that frees. `run`: the run folder's name that it belongs to.

    Attributes:
        beside: files and folders that go with it.
        trash: where the thing is moved before it is deleted; on the same file system.
    """

    kind: Kind
    refresh: str
    path: StoragePath
    why: str
    bytes: int
    trash: Path
    run: str = ""
    beside: Sequence[StoragePath] = ()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One thing of value that stays, and why."""

    kind: Kind
    path: StoragePath
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What would go and what stays of one refresh."""

    refresh: str
    expired: Sequence[Expired] = ()
    kept: Sequence[Kept] = ()
