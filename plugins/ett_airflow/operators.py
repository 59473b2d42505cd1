"""The four tasks that run jobs: check_schema, launch, train, publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from ett_airflow.follow import Until
from ett_airflow.job_operator import JobFailedError, JobOperator, TaskRun, describe_end
from ett_airflow.progress import stuck_attempts
from ett_airflow.resolution import AirflowRun, RunNameTakenError, resolve
from ett_airflow.seen_ends import SeenEnds
from ett_airflow.window import WindowError
from ett_reports.events import Cause
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, Resources, newest_attempt
from trainer.run_folder import RunFolder
from trainer.spec import Device, RunSpec, SpecError, load_spec

TRAINING_JOB = "train"


class CheckSchemaOperator(JobOperator):
    """Decides what the run is, writes its folder, and checks the window's data. Bad data ends the run here."""

    def __init__(self, *, spec_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_path = spec_path

    def open_run(self, context: Context) -> tuple[RunFolder, RunSpec]:
        run = airflow_run(context)
        try:
            return run.folder, resolve(load_spec(Path(self.spec_path)), run)
        except (SpecError, WindowError, RunNameTakenError) as error:
            raise AirflowFailException(f"{self.task_id}: {error}") from error

    def begin(self, run: TaskRun) -> Any:
        if newest_attempt(run.launcher, run.key(TRAINING_JOB)) is not None:
            # The stream of samples is fixed at first submission; a new plan would be another job's.
            self.log.info("training has begun on this run's plan, which stays; trigger a new run for changed data")
            return None
        return super().begin(run)

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        command = ("trainer.dpp.check", "--run-folder", run.folder.url)
        return JobRequest(key=key, command=command, run_folder=run.folder, resources=Resources(memory_mb=4096))


class _TrainingJobOperator(JobOperator):
    """What `launch` and `train` share: one training job, whose attempts they take turns to submit."""

    @property
    def job_task(self) -> str:
        return TRAINING_JOB

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        resources = run.spec.refresh.resources
        return JobRequest(
            key=key,
            command=("trainer",),
            run_folder=run.folder,
            replicas=resources.ranks,
            devices=resources.ranks,
            resources=Resources(cpus=1, gpus=int(resources.device is Device.CUDA), memory_mb=4096),
            hang_timeout_s=resources.hang_timeout_s,
        )


class LaunchOperator(_TrainingJobOperator):
    """Submits the training job and waits until it holds its capacity: this task's time is Scheduling Time."""

    until = Until.HELD

    def is_due(self, run: TaskRun, ended: JobStatus) -> bool:
        # An attempt that ended after it had its capacity is for `train` to judge.
        return not _held(ended) and super().is_due(run, ended)

    def judge(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        if not _held(status):
            return super().judge(run, handle, status, own=own)
        if status.cause is Cause.DATA:
            raise AirflowFailException(describe_end(self.task_id, status))
        return str(handle)


class TrainOperator(_TrainingJobOperator):
    """Follows the training job to its anchor checkpoint; resubmits what was preempted, gives up on a crash loop."""

    def judge(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        if status.state is JobState.PREEMPTED:
            return self._resubmit(run, status)
        try:
            return super().judge(run, handle, status, own=own)
        except JobFailedError as error:
            self._give_up_on_crash_loop(run, status, error)
            raise

    def is_due(self, run: TaskRun, ended: JobStatus) -> bool:
        # A completed job stays completed, also when a person clears the task: there is nothing left of its stream.
        return ended.state is not JobState.SUCCEEDED and super().is_due(run, ended)

    def _resubmit(self, run: TaskRun, status: JobStatus) -> Any:
        """Within the same try: preemptions have a budget of their own and do not eat the task's retries."""
        SeenEnds(run.folder, self.job_task).add(status)
        preempted = sum(each.state is JobState.PREEMPTED for each in self._attempts(run, status.attempt))
        budget = run.spec.refresh.retries.preemptions
        if preempted > budget:
            raise AirflowFailException(
                f"{self.task_id}: preempted {preempted} times, retries.preemptions allows {budget}; nothing is lost: "
                "raise the budget, or wait for free capacity, and clear this task to go on from its last checkpoint"
            )
        self.log.info("preempted (%d of %d): resubmitting", preempted, budget)
        return self.submit(run, attempt=status.attempt + 1)

    def _attempts(self, run: TaskRun, newest: int) -> list[JobStatus]:
        handles = (run.launcher.find(run.key(TRAINING_JOB, number)) for number in range(1, newest + 1))
        return [run.launcher.describe(handle) for handle in handles if handle is not None]

    def _give_up_on_crash_loop(self, run: TaskRun, status: JobStatus, error: JobFailedError) -> None:
        stuck = stuck_attempts(run.folder)
        limit = run.spec.refresh.retries.crash_loop
        if stuck >= limit:
            raise AirflowFailException(
                f"{self.task_id}: crash loop: the last {stuck} attempts ended without moving the cursor "
                f"(retries.crash_loop is {limit}), so another would too. The last one: {error}"
            ) from error


class PublishOperator(JobOperator):
    """The CPU job from anchor checkpoint to registered snapshot; the devices are released by then."""

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        command = ("publish", "--run-folder", run.folder.url)
        return JobRequest(key=key, command=command, run_folder=run.folder, resources=Resources(memory_mb=4096))


def airflow_run(context: Context) -> AirflowRun:
    """The run as Airflow's context tells it. Manual and asset-triggered runs may have no dates at all."""
    dag_run = context["dag_run"]
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    return AirflowRun(
        dag_id=context["dag"].dag_id,
        run_id=dag_run.run_id,
        run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
        interval=(start, end) if start is not None and end is not None else None,
        params=dict(context["params"]),
    )


def _held(status: JobStatus) -> bool:
    return status.allocated_ns is not None
