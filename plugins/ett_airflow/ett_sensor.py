"""The ETT sensor: waits for the log to settle, joins Airflow's record to it, gives ETT%, judges service levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.chain_lock import TRAINING_JOB
from ett_airflow.follow import Until, WatchTrigger
from ett_airflow.generation import began_ns
from ett_airflow.job_operator import StampedOperator, TaskRun
from ett_airflow.tries import CONNECTION, read_record, write_record
from ett_reports.events import Point
from trainer.launch import JobState, newest_attempt
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec

if TYPE_CHECKING:
    from ett_reports.report import JobReport, RefreshReport
    from ett_reports.slo import Judgement, Verdict

HEADLINE = "headline"
"""The XCom with the figures; there also when the task is red."""
_WIDTH = 120


class DegradedError(AirflowFailException):
    """The figures are there, and a source is missing that could have told otherwise: the task must not be green."""


class EttSensor(StampedOperator):
    """Runs after success and failure alike; skipped when no training job was ever submitted.

    Green means: measured, with every source at hand. A broken service level leaves it green, for it was measured; it
    is said in the log and the headline, and its owner is alerted. With a source missing the task is red, and says
    which; the run's own colour is the report's, which asks for the snapshot only.
    """

    def __init__(self, *, poll_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.poll_s = poll_s

    def open_spec(self, context: Context, folder: RunFolder) -> RunSpec:
        if not folder.spec_path.exists():
            raise AirflowSkipException("the run was never decided: there is nothing to measure")
        return super().open_spec(context, folder)

    def execute(self, context: Context) -> Any:
        return self.stamped(context, Point.TASK_CODE_START, self._settle)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        if "error" in event:
            self.log.warning("the job's end is not known: %s", event["error"])
        return self.stamped(context, Point.TASK_RESUME, self._measure)

    def _settle(self, run: TaskRun) -> Any:
        handle = newest_attempt(run.launcher, run.key(TRAINING_JOB))
        if handle is None:
            raise AirflowSkipException("no training job was submitted: there is nothing to measure")
        status = run.launcher.describe(handle)
        if status.state is JobState.LOST or not status.terminal:
            # `train` has ended, so nobody follows this job: a person failed the task in a moment when neither its
            # process nor its trigger could cancel, or its supervisor died. Devices are not held for nobody.
            run.launcher.cancel(handle)
        if not status.terminal:
            trigger = WatchTrigger(handle=str(handle), until=Until.ENDED, poll_s=self.poll_s)
            self.defer(trigger=trigger, method_name="resume")
        return self._measure(run)

    def _measure(self, run: TaskRun) -> dict[str, Any]:
        unread = self._join(run)
        from ett_reports.levels import reduce  # not at import: DAG files import this module at every parse
        from ett_reports.reader import read_log
        from ett_reports.slo import Snapshot, judge, policy_from
        from ett_reports.tasks import reduce_refresh

        log, spec = read_log(run.folder.events_dir), run.spec.refresh
        job = reduce(log)
        refresh = reduce_refresh(log, job)
        policy = policy_from(
            {str(part): owner for part, owner in spec.owners.items()},
            {str(part): level for part, level in spec.service_levels.items()},
        )
        judgement = judge(Snapshot(job=job, refresh=refresh, policy=policy))
        headline = headline_of(job, refresh, judgement, unread)
        self._show(job, refresh, judgement, headline)
        run.context["ti"].xcom_push(key=HEADLINE, value=headline)
        if headline["degraded"]:
            raise DegradedError(
                f"{self.task_id}: degraded, {_one_line(job)}, but: {'; '.join(headline['degraded'])}. The figures are "
                "in XCom `headline` and the report; mend the source and clear this task, or accept it as it is"
            )
        return headline

    def _join(self, run: TaskRun) -> str | None:
        """Join Airflow's record; what is missing if that cannot be had.

        Raises:
            AirflowException: Airflow does not answer, and another try may find it well.
        """
        try:
            return None if join_airflow(run, run.context) else f"there is no Connection {CONNECTION}: {_NO_TRIES}"
        except AirflowApiError as error:
            if run.try_number <= run.context["ti"].max_tries:
                raise AirflowException(f"{self.task_id}: {error}") from error
            return f"{error}: {_NO_TRIES}"

    def _show(
        self, job: JobReport, refresh: RefreshReport | None, judgement: Judgement, headline: dict[str, Any]
    ) -> None:
        from ett_reports.render.terminal import render_terminal, to_text

        for line in to_text(render_terminal(job, refresh, judgement), width=_WIDTH).splitlines():
            self.log.info("%s", line)
        for breach in judgement.breaches:
            self.log.warning("%s", _breach_line(breach))
        for line in headline["degraded"]:
            self.log.warning("degraded: %s", line)
        self.log.info("%s", _one_line(job))


_NO_TRIES = "Airflow's own record of the run is missing"


def headline_of(
    job: JobReport, refresh: RefreshReport | None, judgement: Judgement, unread: str | None
) -> dict[str, Any]:
    """The figures that other tasks and people ask for first; seconds, and shares of 1. None: not known."""
    degraded = dict.fromkeys([*job.degraded, *(refresh.degraded if refresh else ())])
    return {
        "ett": job.ett,
        "wall_s": job.wall_ns / 1e9,
        "productive_s": job.productive_ns / 1e9,
        "nof": job.nof,
        "state": str(job.state),
        "freshness_s": None if refresh is None or refresh.freshness_ns is None else refresh.freshness_ns / 1e9,
        "tasks": {
            task.task: {"interval_s": task.interval_ns / 1e9, "ett": task.ett, "share": task.share}
            for task in (refresh.tasks if refresh else ())
        },
        "breaches": [
            {
                "component": str(verdict.subject),
                "spent_s": None if verdict.spent_ns is None else verdict.spent_ns / 1e9,
                "limit_s": None if verdict.limit_ns is None else verdict.limit_ns / 1e9,
                "owner": verdict.owner.team if verdict.owner else None,
            }
            for verdict in judgement.breaches
        ],
        "degraded": [*([unread] if unread else []), *degraded],
    }


def join_airflow(run: TaskRun, context: Context) -> bool:
    """Write what Airflow knows of this run into its event log; False without the Connection.

    Raises:
        AirflowApiError: there is a Connection, and its Airflow does not answer.
    """
    api = connected_api()
    if api is None:
        return False
    record = read_record(api, context["dag"].dag_id, context["run_id"], since_ns=began_ns(run.folder))
    write_record(run.folder, record, window_end=run.spec.run.window.end)
    return True


def connected_api() -> AirflowApi | None:
    """The API behind the Connection `ett_airflow_api`, a user who may read; None where no such Connection exists."""
    try:
        connection = Connection.get(CONNECTION)
    except Exception:
        return None  # the SDK raises one of several types for an unknown id
    scheme = connection.conn_type if connection.conn_type in ("http", "https") else "http"
    address = f"{scheme}://{connection.host}:{connection.port or (443 if scheme == 'https' else 80)}"
    return AirflowApi(address, connection.login or "", connection.password or "")


def _breach_line(breach: Verdict) -> str:
    owner = breach.owner.label if breach.owner else "nobody"
    spent, limit = (breach.spent_ns or 0) / 1e9, (breach.limit_ns or 0) / 1e9
    return f"service level of {breach.subject} broken, owner {owner}: {spent:,.1f} s, {breach.reason} of {limit:,.1f} s"


def _one_line(report: JobReport) -> str:
    share = "n/a" if report.ett is None else f"{100 * report.ett:.2f}%"
    return f"ETT {share} of {report.wall_ns / 1e9:.1f} s, {report.nof} failures"
