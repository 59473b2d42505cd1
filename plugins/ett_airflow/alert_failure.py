"""Why a refresh is red: the class of its failure, which decides whose it is and what the runbook says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ett_airflow.chain_lock import TRAINING_JOB
from ett_airflow.outcome import TaskFailure
from ett_reports.events import Cause
from trainer.launch import JobKey, JobState, JobStatus, Launcher, LaunchError, newest_attempt
from trainer.run_folder import RunFolder
from trainer.spec import Owned

NO_SNAPSHOT = "no snapshot"
"""State of `publish` in a refresh whose every task was green, or skipped, and that left no snapshot."""


class FailureClass(StrEnum):
    """The causes of the taxonomy, and what only a whole refresh can fail of. Each is a section of the runbook."""

    PREEMPTION = "preemption"
    INFRASTRUCTURE = "infrastructure"
    APPLICATION = "application"
    DATA = "data"
    HANG = "hang"
    CANCELLED = "cancelled"
    PLANNED = "planned"
    CRASH_LOOP = "crash-loop"
    NO_SNAPSHOT = "no-snapshot"
    CONTROL_PLANE = "control-plane"


_OWNED = {
    FailureClass.PREEMPTION: Owned.SCHEDULING,
    FailureClass.INFRASTRUCTURE: Owned.WASTED_TRAINING,
    FailureClass.APPLICATION: Owned.EFFECTIVE_TRAINING,
    FailureClass.DATA: Owned.DATA,
    FailureClass.HANG: Owned.WASTED_TRAINING,
    FailureClass.CANCELLED: Owned.SCHEDULING,
    FailureClass.PLANNED: Owned.SCHEDULING,
    FailureClass.CRASH_LOOP: Owned.TRAINER_INIT,
    FailureClass.NO_SNAPSHOT: Owned.PUBLISHING,
}
"""Who is told; a failure of the control plane has no owner among the components and goes to `alerts.fallback`."""


@dataclass(frozen=True, kw_only=True)
class RedRun:
    """A refresh that ended red: the task that stopped it, of which class, and what it said."""

    task: str
    failure: FailureClass
    message: str

    @property
    def owned(self) -> Owned | None:
        """The component whose owner answers for it."""
        if self.task == "publish" and self.failure is not FailureClass.DATA:
            return Owned.PUBLISHING
        return _OWNED.get(self.failure)

    @property
    def sign(self) -> str:
        return f"{self.task} {self.failure}"


def red_run(folder: RunFolder, launcher: Launcher, failure: TaskFailure) -> RedRun:
    """`failure` with its class, by what its job's newest attempt ended of."""
    return RedRun(task=failure.task, failure=_class_of(folder, launcher, failure), message=str(failure))


def _class_of(folder: RunFolder, launcher: Launcher, failure: TaskFailure) -> FailureClass:
    if failure.message.removeprefix(f"{failure.task}: ").startswith("crash loop"):
        return FailureClass.CRASH_LOOP
    if failure.state in (NO_SNAPSHOT, "skipped"):
        return FailureClass.NO_SNAPSHOT
    task = TRAINING_JOB if failure.task in ("launch", "train") else failure.task
    status = _newest(launcher, JobKey(refresh=folder.refresh, run=folder.run, task=task))
    if status is None or not status.terminal or status.state is JobState.SUCCEEDED:
        return FailureClass.CONTROL_PLANE  # the task failed before, beside or after its job
    return FailureClass((status.cause or _cause_of(status)).value)


def _newest(launcher: Launcher, key: JobKey) -> JobStatus | None:
    try:
        handle = newest_attempt(launcher, key)
        return None if handle is None else launcher.describe(handle)
    except LaunchError:
        return None


def _cause_of(status: JobStatus) -> Cause:
    if status.state is JobState.PREEMPTED:
        return Cause.PREEMPTION
    if status.state is JobState.CANCELLED:
        return Cause.CANCELLED
    return Cause.INFRASTRUCTURE if status.state is JobState.LOST else Cause.APPLICATION
