"""The four tasks that run jobs: check_schema, launch, train, publish."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DownstreamTasksSkipped

from ett_airflow import chain_lock
from ett_airflow.chain_lock import TRAINING_JOB, ChainLock, Holder
from ett_airflow.descendants import mark_descendants
from ett_airflow.dry_run import show_dry_run
from ett_airflow.follow import Until
from ett_airflow.generation import RunNameTakenError
from ett_airflow.job_operator import JobFailedError, JobOperator, TaskRun, describe_end, identity_of
from ett_airflow.outcome import live_version, registered_snapshot
from ett_airflow.parameters import DRY_RUN
from ett_airflow.partitions import closed_days, missing_days
from ett_airflow.progress import stuck_attempts
from ett_airflow.resolution import AirflowRun, days_of, resolve
from ett_airflow.seen_ends import Hold, SeenEnds
from ett_airflow.waiting import LandingTrigger, TurnTrigger, trained
from ett_airflow.window import NothingToTrainError, WindowError
from ett_reports.events import Cause, Point
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, Resources, newest_attempt
from trainer.run_folder import RunFolder, RunFolderError, data_root
from trainer.spec import Device, RunSpec, RunType, SpecError, Technique, load_spec

AFTER_CHECK = ("launch", "train", "publish", "ett", "report")


class _InTurn(JobOperator):
    """A task that goes on only while its run holds the refresh's chain lock: one run trains at a time."""

    def turned(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the wait for this run's turn."""
        return self.stamped(context, Point.TASK_RESUME, self.begin)

    def hold_chain(self, context: Context, folder: RunFolder) -> None:
        """Take the lock, or defer until it may be free."""
        me = holder_of(context, folder)
        other = ChainLock(me.dag_id).take(me, chain_lock.runs_in_airflow)
        if other is not None:
            self.log.info("run %s trains; waiting until it has", other.run_id)
            self.wait_for_turn(context, earlier=None)

    def wait_for_turn(self, context: Context, *, earlier: str | None) -> None:
        identity = identity_of(context)
        trigger = TurnTrigger(dag_id=identity.dag_id, run_id=identity.run_id, earlier=earlier)
        self.defer(trigger=trigger, method_name="turned")


class CheckSchemaOperator(_InTurn):
    """Decides what the run is, writes its folder, and checks the window's data. Bad data ends the run here.

    Before that it waits for its turn, and for its days to land. A dry run, and a run whose days are all closed, end
    here too, with nothing wrong: the rest is skipped.
    """

    moments = 3

    def __init__(self, *, spec_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_path = spec_path

    def execute(self, context: Context) -> Any:
        if context["params"].get(DRY_RUN):
            return self._dry_run(context)
        return super().execute(context)

    def landed(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the days have landed, or were waited for long enough: the check says which are missing."""
        return self.stamped(context, Point.TASK_RESUME, self.check)

    def open_folder(self, context: Context) -> RunFolder:
        try:
            return airflow_run(context).identity.begin()
        except (RunNameTakenError, RunFolderError) as error:
            raise AirflowFailException(f"{self.task_id}: {error}") from error

    def open_spec(self, context: Context, folder: RunFolder) -> RunSpec:
        if not folder.spec_path.exists():
            self._go_in_order(context, folder)
        try:
            return resolve(load_spec(Path(self.spec_path)), airflow_run(context), folder)
        except NothingToTrainError as nothing:
            if airflow_run(context).kind is RunType.ASSET:
                self.log.info("%s", nothing)
                self._skip_the_rest(context, folder)
            ChainLock(folder.refresh).release(holder_of(context, folder))
            raise AirflowFailException(f"{self.task_id}: {nothing}") from nothing
        except (SpecError, WindowError) as error:
            raise AirflowFailException(f"{self.task_id}: {error}") from error

    def _go_in_order(self, context: Context, folder: RunFolder) -> None:
        """What a run starts from is decided when it may train, after the active runs of earlier days have trained."""
        before = context["ti"].get_previous_dagrun(state="running")
        if before is not None and not trained(folder.refresh, before.run_id):
            self.log.info("run %s of an earlier day goes first", before.run_id)
            self.wait_for_turn(context, earlier=before.run_id)
        self.hold_chain(context, folder)

    def begin(self, run: TaskRun) -> Any:
        if newest_attempt(run.launcher, run.key(TRAINING_JOB)) is not None:
            # The stream of samples is fixed at first submission; a new plan would be another job's.
            self.log.info("training has begun on this run's plan, which stays; trigger a new run for changed data")
            return None
        spec = run.spec.refresh
        root, days = data_root(spec.data.root), days_of(run.spec.run)
        if missing_days(root, days) and spec.data.landing_wait_s:
            trigger = LandingTrigger(
                root=str(root), days=[str(day) for day in days], until_unix_s=time.time() + spec.data.landing_wait_s
            )
            self.defer(trigger=trigger, method_name="landed")
        return self.check(run)

    def check(self, run: TaskRun) -> Any:
        """Check the data, unless there can be none."""
        days = days_of(run.spec.run)
        closed = closed_days(data_root(run.spec.refresh.data.root), days)
        if len(closed) == len(days):
            told = "; ".join(f"{day}: {reason}" for day, reason in closed.items())
            self.log.info("nothing to train on, the rest of this run is skipped. Closed: %s", told)
            run.context["ti"].xcom_push(key="closed_days", value=[str(day) for day in closed])
            self._skip_the_rest(run.context, run.folder)
        return super().begin(run)

    def _dry_run(self, context: Context) -> None:
        run = airflow_run(context)
        try:
            shown = show_dry_run(load_spec(Path(self.spec_path)), run)
        except (SpecError, WindowError, RunNameTakenError) as error:
            raise AirflowFailException(f"{self.task_id}: {error}") from error
        for line in shown.lines():
            self.log.info("%s", line)
        context["ti"].xcom_push(key="dry_run", value=shown.to_json())
        self._skip_the_rest(context, None)

    def _skip_the_rest(self, context: Context, folder: RunFolder | None) -> None:
        if folder is not None:
            ChainLock(folder.refresh).release(holder_of(context, folder))
        raise DownstreamTasksSkipped(tasks=list(AFTER_CHECK))

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        command = ("trainer.dpp.check", "--run-folder", run.folder.url)
        return JobRequest(key=key, command=command, run_folder=run.folder, resources=Resources(memory_mb=4096))


class _TrainingJobOperator(_InTurn):
    """What `launch` and `train` share: one training job, whose attempts they take turns to submit."""

    @property
    def job_task(self) -> str:
        return TRAINING_JOB

    def submit(self, run: TaskRun, *, attempt: int) -> Any:
        # A run that was cleared long after its end has lost its turn to others.
        self.hold_chain(run.context, run.folder)
        return super().submit(run, attempt=attempt)

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        refresh = run.spec.refresh
        resources = refresh.resources
        on_gpu = resources.device is Device.CUDA
        kept_warm = refresh.optimizations.enabled(Technique.WARM_STANDBY) and not on_gpu
        return JobRequest(
            key=key,
            command=("trainer",),
            run_folder=run.folder,
            replicas=resources.ranks,
            devices=resources.ranks,
            resources=Resources(cpus=1, gpus=int(on_gpu), memory_mb=4096),
            grace_s=resources.grace_s,
            hang_timeout_s=resources.hang_timeout_s,
            standby_idle_s=resources.standby_idle_s if kept_warm else None,
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

    live_figures = True

    def judge(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        if status.state is JobState.PREEMPTED:
            return self._resubmit(run, status)
        try:
            result = super().judge(run, handle, status, own=own)
        except JobFailedError as error:
            self._give_up_on_crash_loop(run, status, error)
            raise
        self._complete(run)
        return result

    def _complete(self, run: TaskRun) -> None:
        """The anchor is there: the next run may begin, and what was built on an older one of these days is stale."""
        ChainLock(run.folder.refresh).release(holder_of(run.context, run.folder))
        stale = mark_descendants(run.folder)
        if stale:
            self.log.warning(
                "these days were trained before; runs built on that are stale now: %s. The live snapshot stays as it "
                "is; train the later days again, in order, for one that has seen this run's days",
                ", ".join(stale),
            )
            run.context["ti"].xcom_push(key="stale_descendants", value=list(stale))

    def is_due(self, run: TaskRun, ended: JobStatus) -> bool:
        # A completed job stays completed, also when a person clears the task: there is nothing left of its stream.
        return ended.state is not JobState.SUCCEEDED and super().is_due(run, ended)

    def _resubmit(self, run: TaskRun, status: JobStatus) -> Any:
        """Within the same try: preemptions have a budget of their own and do not eat the task's retries."""
        SeenEnds(run.folder, self.job_task).add(status)
        hold = Hold(run.folder, self.job_task)
        attempts = [each for each in self._attempts(run, status.attempt) if each.attempt > hold.attempt]
        preempted = sum(each.state is JobState.PREEMPTED for each in attempts)
        budget = run.spec.refresh.retries.preemptions
        if preempted > budget:
            hold.put(status.attempt)
            raise AirflowFailException(
                f"{self.task_id}: preempted {preempted} times, retries.preemptions allows {budget}; nothing is lost: "
                "wait for free capacity and clear this task, which goes on from its last checkpoint with a new budget"
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
                f"(retries.crash_loop is {limit}), so another would too. Mend the cause, then clear this task: that "
                f"makes one more attempt. The last one: {error}"
            ) from error


class PublishOperator(JobOperator):
    """The CPU job from anchor checkpoint to registered snapshot; the devices are released by then.

    Its outlet is the refresh's live snapshot, an asset that other DAGs can be scheduled on: an event tells of a version
    that went live, so none comes of a trial, nor of an old day that was trained again.
    """

    moments = 3

    def __init__(self, *, snapshot: Asset | None = None, **kwargs: Any) -> None:
        super().__init__(outlets=[snapshot] if snapshot else [], **kwargs)
        self.snapshot = snapshot

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        command = ("publish", "--run-folder", run.folder.url)
        return JobRequest(key=key, command=command, run_folder=run.folder, resources=Resources(memory_mb=4096))

    def judge(self, run: TaskRun, handle: JobHandle, status: JobStatus, *, own: bool) -> Any:
        result = super().judge(run, handle, status, own=own)
        if registered_snapshot(run.folder) is None:
            raise AirflowException(f"{self.task_id}: the job ended well, yet {run.folder.run} is not in the registry")
        self._tell_of_snapshot(run)
        return result

    def _tell_of_snapshot(self, run: TaskRun) -> None:
        version, window = run.folder.run, run.spec.run.window
        is_live = live_version(run.folder.refresh) == version
        self.log.info("snapshot %s is registered%s", version, " and live" if is_live else ", another one is live")
        if self.snapshot is None:
            return
        if is_live:
            run.context["outlet_events"][self.snapshot].extra = {
                "version": version,
                "window_start": str(window.start),
                "window_end": str(window.end),
            }
        else:
            # Airflow makes an event of every outlet that a successful task still has.
            self.outlets = []


def snapshot_asset(refresh: str) -> Asset:
    """The live snapshot of a refresh: its name is `<refresh>/snapshot`."""
    return Asset(name=f"{refresh}/snapshot", uri=f"x-ett-snapshot://{refresh}", group="ett-snapshot")


def holder_of(context: Context, folder: RunFolder) -> Holder:
    """A run as holder of its refresh's chain lock."""
    identity = identity_of(context)
    return Holder(dag_id=identity.dag_id, run_id=identity.run_id, run=folder.run)


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
