"""The life that every data-plane task shares: submit, follow without a worker slot, re-attach, classify the end."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TaskDeferred,
)

from ett_airflow.follow import JobTrigger, Until, reached
from ett_airflow.generation import RunIdentity
from ett_airflow.job_log import JobLog
from ett_airflow.seen_ends import SeenEnds
from ett_airflow.stamps import Stamps
from ett_reports.events import Cause, Point
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, Launcher, launcher_for, newest_attempt
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec, SpecError, load_run_spec

MOMENTS_S = 3.0
"""How long a task waits by itself before it defers. A deferral costs two seconds and more (`follow.SHORTEST_S`)."""


class JobFailedError(AirflowException):
    """A job that ended without doing its work; the task's retries decide what follows."""

    def __init__(self, task: str, status: JobStatus) -> None:
        super().__init__(describe_end(task, status))
        self.cause = status.cause


def describe_end(task: str, status: JobStatus) -> str:
    """One line for people: which attempt, how it ended, and what it said."""
    cause = f", cause {status.cause}" if status.cause else ""
    return f"{task}: attempt {status.attempt} {status.state}{cause}: {status.message or 'it left no message'}"


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One try of one task, with all that its steps need."""

    task: str
    folder: RunFolder
    spec: RunSpec
    try_number: int
    stamps: Stamps
    context: Context

    @property
    def identity(self) -> RunIdentity:
        return identity_of(self.context)

    @property
    def launcher(self) -> Launcher:
        return launcher_for(self.spec.refresh.resources.scheduler)

    def key(self, task: str, attempt: int = 1) -> JobKey:
        return JobKey(refresh=self.folder.refresh, run=self.folder.run, task=task, attempt=attempt)


class StampedOperator(BaseOperator):
    """An operator that leaves its own stamps in the run's event log, whatever becomes of it."""

    def open_folder(self, context: Context) -> RunFolder:
        """Where the run works, made by its first task."""
        return identity_of(context).folder.create()

    def open_spec(self, context: Context, folder: RunFolder) -> RunSpec:
        """The run's resolved spec, which the first task has written."""
        try:
            return load_run_spec(folder.spec_path)
        except SpecError as error:
            raise AirflowFailException(f"the run's resolved spec cannot be used: {error}") from error

    def stamped(self, context: Context, first: Point, work: Callable[[TaskRun], Any]) -> Any:
        """Run `work` between the stamps `first` and deferral or end."""
        began_ns = time.time_ns()
        folder = self.open_folder(context)
        try_number = context["ti"].try_number
        with Stamps(folder, task=self.task_id, try_number=try_number) as stamps:
            stamps.stamp(first, wall_ns=began_ns)
            try:
                spec = self.open_spec(context, folder)
                result = work(
                    TaskRun(
                        task=self.task_id,
                        folder=folder,
                        spec=spec,
                        try_number=try_number,
                        stamps=stamps,
                        context=context,
                    )
                )
            except TaskDeferred:
                stamps.stamp(Point.TASK_DEFER)
                raise
            except AirflowSkipException as skip:
                stamps.stamp(Point.TASK_END, outcome="skipped", message=str(skip))
                raise
            except DownstreamTasksSkipped:
                stamps.stamp(Point.TASK_END, outcome="success")
                raise
            except BaseException as error:
                stamps.stamp(Point.TASK_END, outcome="failed", message=str(error), error=type(error).__name__)
                raise
            stamps.stamp(Point.TASK_END, outcome="success")
            return result


class JobOperator(StampedOperator):
    """Runs one kind of job. What differs between tasks: the request, and what an end means."""

    until = Until.ENDED
    live_figures = False
    """Whether the job's progress and ETT% so far are shown while it is followed."""
    moments = 1
    """How many times `MOMENTS_S` the task waits by itself, in a worker's slot: more where jobs take seconds."""

    def __init__(self, *, poll_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.poll_s = poll_s
        self._followed: JobHandle | None = None

    @property
    def job_task(self) -> str:
        """The task in the job's key; `launch` and `train` share one job."""
        return self.task_id

    @abstractmethod
    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        """The job of `key`."""

    def execute(self, context: Context) -> Any:
        return self.stamped(context, Point.TASK_CODE_START, self.begin)

    def resume(self, context: Context, event: dict[str, Any], handle: str, own: bool) -> Any:
        """Go on after the trigger fired. `own`: this try submitted the job, it did not find it."""
        return self.stamped(context, Point.TASK_RESUME, partial(self._resumed, event=event, handle=handle, own=own))

    def begin(self, run: TaskRun) -> Any:
        """Find the job and go on with it, or submit the attempt that is due."""
        handle = newest_attempt(run.launcher, run.key(self.job_task))
        if handle is None:
            return self.submit(run, attempt=1)
        status = run.launcher.describe(handle)
        if status.state is JobState.REGISTERED:
            self.log.info("attempt %d was registered by a try that died before it started: starting it", status.attempt)
            return self.submit(run, attempt=status.attempt)
        if not status.terminal:
            self.log.info("re-attached to attempt %d, which is alive", status.attempt)
            return self.follow(run, handle, status, own=False)
        if self.is_due(run, status):
            return self.submit(run, attempt=status.attempt + 1)
        self._show_log(handle)
        return self.judge(run, handle, status, own=False)

    def is_due(self, run: TaskRun, ended: JobStatus) -> bool:
        """Whether a new attempt must follow the ended one, which an earlier try has judged, or a person cancelled."""
        return ended.state is JobState.CANCELLED or ended in SeenEnds(run.folder, self.job_task)

    def submit(self, run: TaskRun, *, attempt: int) -> Any:
        """Submit one attempt. Its key is looked up by name, so that a try that dies here leaves no second copy."""
        request = self.request(run, run.key(self.job_task, attempt))
        run.stamps.stamp(Point.TASK_SUBMIT, attempt=attempt)
        handle = run.launcher.submit(request)
        self.log.info("submitted attempt %d: %s", attempt, handle)
        return self.follow(run, handle, run.launcher.describe(handle), own=True)

    def follow(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        """Wait in the triggerer, unless the wait is over within moments."""
        self._followed = handle
        give_up = time.monotonic() + self.moments * MOMENTS_S
        while not reached(status, self.until) and time.monotonic() < give_up:
            time.sleep(min(self.poll_s, 0.2))
            status = run.launcher.describe(handle)
        self._show_log(handle)
        if reached(status, self.until):
            return self.judge(run, handle, status, own=own)
        trigger = JobTrigger(handle=str(handle), until=self.until, poll_s=self.poll_s, figures=self.live_figures)
        return self.defer(trigger=trigger, method_name="resume", kwargs={"handle": str(handle), "own": own})

    def _resumed(self, run: TaskRun, *, event: dict[str, Any], handle: str, own: bool) -> Any:
        if "error" in event:
            raise AirflowException(f"{self.task_id}: {event['error']}")
        self._show_log(JobHandle.parse(handle))
        return self.judge(run, JobHandle.parse(handle), JobStatus.from_dict(event["status"]), own=own)

    def _show_log(self, handle: JobHandle) -> None:
        for line in JobLog(handle).new_lines():
            self.log.info("%s", line)

    def judge(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        """Classify an end, once: success returns, bad data and a cancelled job fail for good, the rest is retried."""
        if status.state is JobState.CANCELLED and not own:
            # The clear that started this try also cancelled the job that it found: the next attempt is due.
            return self.submit(run, attempt=status.attempt + 1)
        SeenEnds(run.folder, self.job_task).add(status)
        if status.state is JobState.SUCCEEDED:
            return str(handle)
        if status.cause is Cause.DATA or status.state is JobState.CANCELLED:
            raise AirflowFailException(describe_end(self.task_id, status))
        raise JobFailedError(self.task_id, status)

    def on_kill(self) -> None:
        """A person acted on the task while its own process was up (submitting or resuming)."""
        if self._followed is not None:
            launcher_for(self._followed.scheduler).cancel(self._followed)


def identity_of(context: Context) -> RunIdentity:
    """The run that a task belongs to."""
    return RunIdentity(context["dag"].dag_id, context["run_id"])
