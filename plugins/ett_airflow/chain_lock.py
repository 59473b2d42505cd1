"""One run of a refresh trains at a time, whatever started it: a run's days start from the anchor of the days before.

Airflow's `max_active_runs` does not count backfills, and knows nothing of a job that outlives its run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ett_airflow.seen_ends import completed
from trainer.atomic_file import replace_text
from trainer.launch import JobKey, JobState, LaunchError, launcher_for, newest_attempt
from trainer.launch.file_lock import FileLock
from trainer.run_folder import RunFolder, runs_root
from trainer.spec import SpecError, load_run_spec

LOCK_VERSION = 1
TRAINING_JOB = "train"
IsRunning = Callable[[str, str], bool]
"""(dag_id, run_id) -> whether that run is running in Airflow."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The run that may train. `run`: its folder's name."""

    dag_id: str
    run_id: str
    run: str
    since_unix_ns: int = 0
    version: int = LOCK_VERSION

    @property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.dag_id, self.run)

    def same_run(self, other: Holder) -> bool:
        return (self.dag_id, self.run_id) == (other.dag_id, other.run_id)


class ChainLock:
    """`ROOT/<refresh>/chain.json`: the holder keeps it until it has trained, or its run and its job are both over.

    A file and not a lock of the kernel: the holder lives on while none of its processes does, in the triggerer.
    """

    def __init__(self, refresh: str, root: Path | None = None) -> None:
        folder = (root or runs_root()) / refresh
        self._path = folder / "chain.json"
        self._guard = folder / ".chain.lock"

    def holder(self) -> Holder | None:
        """Who has it, alive or not."""
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            return Holder(**data) if data.get("version") == LOCK_VERSION else None
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def take(self, me: Holder, is_running: IsRunning) -> Holder | None:
        """Take it for `me`; None when that worked, else who has it."""
        found = self.holder()
        if found is not None and not found.same_run(me) and is_busy(found, is_running):
            return found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._guard):
            now = self.holder()
            if now is not None and not now.same_run(me) and now != found:
                return now  # another run was quicker
            replace_text(self._path, json.dumps(asdict(_stamped(me))) + "\n")
        return None

    def release(self, me: Holder) -> None:
        """Let the next run have it."""
        with FileLock(self._guard):
            found = self.holder()
            if found is not None and found.same_run(me):
                self._path.unlink(missing_ok=True)


def is_busy(holder: Holder, is_running: IsRunning) -> bool:
    """Whether the holder may still train: its run goes on in Airflow, or its job does."""
    return is_running(holder.dag_id, holder.run_id) or _job_lives(holder)


def has_trained(holder: Holder) -> bool:
    """Whether the run's anchor is there for the next one."""
    return completed(holder.folder, TRAINING_JOB)


def runs_in_airflow(dag_id: str, run_id: str) -> bool:
    """Ask Airflow, from a task or a trigger. A queued run does not count: it may wait for this very lock's holder."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["running"]) > 0


def _job_lives(holder: Holder) -> bool:
    try:
        launcher = launcher_for(load_run_spec(holder.folder.spec_path).refresh.resources.scheduler)
        handle = newest_attempt(launcher, JobKey(refresh=holder.dag_id, run=holder.run, task=TRAINING_JOB))
        if handle is None:
            return False
        status = launcher.describe(handle)
        return not status.terminal and status.state is not JobState.REGISTERED  # which only its own run would start
    except (SpecError, LaunchError, OSError):
        return False  # nothing of it can be found: there is nothing to wait for


def _stamped(me: Holder) -> Holder:
    return Holder(dag_id=me.dag_id, run_id=me.run_id, run=me.run, since_unix_ns=time.time_ns())
