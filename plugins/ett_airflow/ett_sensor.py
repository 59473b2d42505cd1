"""The ETT sensor: waits for the log to settle, joins Airflow's own record to it, and gives ETT%."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Connection, Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.follow import Until, WatchTrigger
from ett_airflow.job_operator import StampedOperator, TaskRun
from ett_airflow.operators import TRAINING_JOB
from ett_airflow.tries import CONNECTION, read_record, write_record
from ett_reports.events import Point
from trainer.launch import JobState, newest_attempt

if TYPE_CHECKING:
    from ett_reports.report import JobReport


class EttSensor(StampedOperator):
    """Runs after success and failure alike; skipped when no training job was ever submitted."""

    def __init__(self, *, poll_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.poll_s = poll_s

    def execute(self, context: Context) -> Any:
        return self.stamped(context, Point.TASK_CODE_START, lambda run: self._settle(run, context))

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        if "error" in event:
            self.log.warning("the job's end is not known: %s", event["error"])
        return self.stamped(context, Point.TASK_RESUME, lambda run: self._measure(run, context))

    def _settle(self, run: TaskRun, context: Context) -> Any:
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
        return self._measure(run, context)

    def _measure(self, run: TaskRun, context: Context) -> dict[str, Any]:
        try:
            join_airflow(run, context)
        except AirflowApiError as error:
            if context["ti"].try_number <= context["ti"].max_tries:
                raise AirflowException(f"{self.task_id}: {error}") from error
            self.log.warning("Airflow's own record is missing, the report will say degraded: %s", error)
        from ett_reports.levels import reduce  # not at import: DAG files import this module at every parse
        from ett_reports.reader import read_log

        report = reduce(read_log(run.folder.events_dir))
        self.log.info("%s", _one_line(report))
        return {"ett": report.ett, "wall_s": report.wall_ns / 1e9, "nof": report.nof}


def join_airflow(run: TaskRun, context: Context) -> None:
    """Write what Airflow knows of this run into its event log; without the Connection there is nothing to join.

    Raises:
        AirflowApiError: there is a Connection, and its Airflow does not answer.
    """
    api = connected_api()
    if api is None:
        return
    record = read_record(api, context["dag"].dag_id, context["run_id"])
    write_record(run.folder, record, window_end=run.spec.run.window.end)


def connected_api() -> AirflowApi | None:
    """The API behind the Connection `ett_airflow_api`, a user who may read; None where no such Connection exists."""
    try:
        connection = Connection.get(CONNECTION)
    except Exception:
        return None  # the SDK raises one of several types for an unknown id
    scheme = connection.conn_type if connection.conn_type in ("http", "https") else "http"
    address = f"{scheme}://{connection.host}:{connection.port or (443 if scheme == 'https' else 80)}"
    return AirflowApi(address, connection.login or "", connection.password or "")


def _one_line(report: JobReport) -> str:
    share = "n/a" if report.ett is None else f"{100 * report.ett:.2f}%"
    return f"ETT {share} of {report.wall_ns / 1e9:.1f} s, {report.nof} failures"
