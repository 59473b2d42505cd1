"""The report task: HTML, JSON and terminal table; red when the refresh did not reach a registered snapshot."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from ett_airflow.airflow_api import AirflowApiError
from ett_airflow.alert_callback import TellOfRedRun
from ett_airflow.alert_failure import NO_SNAPSHOT, red_run
from ett_airflow.ett_sensor import join_airflow
from ett_airflow.job_operator import StampedOperator, TaskRun
from ett_airflow.outcome import TaskFailure, first_failure, last_messages, registered_snapshot
from ett_airflow.run_summary import run_summary, run_title
from ett_reports.events import Point
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RefreshSpec

if TYPE_CHECKING:
    from ett_reports.render.files import Written

log = logging.getLogger(__name__)


class RefreshFailedError(AirflowFailException):
    """The refresh ended without a new live snapshot. The report is written; the run must not be green."""


class ReportOperator(StampedOperator):
    """Runs whatever came before. The run's colour is this task's: it is the last one.

    `refresh` is the spec as its file says it now: owners and notifiers are read there, never from a run's folder, which
    jobs can write to. Without it nobody is told of anything.
    """

    def __init__(self, *, refresh: RefreshSpec | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.refresh = refresh

    def execute(self, context: Context) -> Any:
        try:
            return self.stamped(context, Point.TASK_CODE_START, lambda run: self._report(run, context))
        except RefreshFailedError:
            raise  # told in the report
        except Exception as error:
            last_try = context["ti"].try_number > context["ti"].max_tries
            if self.refresh is not None and (last_try or isinstance(error, AirflowFailException)):
                # No run folder, a full disk, ...: told from here, where Airflow answers sooner than in the DAG
                # processor, which tells only of a report that was killed.
                TellOfRedRun(self.refresh)(context)
            raise

    def _report(self, run: TaskRun, context: Context) -> dict[str, str]:
        try:
            join_airflow(run, context)
        except AirflowApiError as error:
            self.log.warning("Airflow's own record is missing, the report says degraded: %s", error)
        written = write_run_reports(run)
        paths = {str(kind): str(path) for kind, path in written.paths.items()} if written else {}
        for kind, path in paths.items():
            self.log.info("%s: %s", kind, path)
        failure = self._failure(run, context)
        self._alert(run, context, written, failure)
        if failure is not None:
            raise RefreshFailedError(f"the refresh failed in {failure}")
        return paths

    def _failure(self, run: TaskRun, context: Context) -> TaskFailure | None:
        """What makes the run red: a task that failed, or no snapshot although none did."""
        states = RuntimeTaskInstance.get_task_states(dag_id=context["dag"].dag_id, run_ids=[context["run_id"]])
        failure = first_failure(states.get(context["run_id"], {}), _messages(run.folder))
        if failure is None and registered_snapshot(run.folder) is None:
            message = "every task ended green, yet no snapshot of this run was ever registered: clear publish to run it"
            return TaskFailure("publish", NO_SNAPSHOT, message)
        return failure

    def _alert(self, run: TaskRun, context: Context, written: Written | None, failure: TaskFailure | None) -> None:
        if self.refresh is None or run.spec.run.purpose is Purpose.TUNING:
            return  # a person looks at a tuning run, and it says nothing about the daily refresh
        from ett_airflow.alerts import AlertedRun, alert_run  # not at import: DAG files import this at every parse

        alert_run(
            AlertedRun(refresh=self.refresh, run_id=context["run_id"], window_end=run.spec.run.window.end),
            dict(context),
            red=None if failure is None else red_run(run.folder, run.launcher, failure),
            judgement=written.judgement if written else None,
            job=written.job if written else None,
            refresh=written.refresh if written else None,
        )


def write_run_reports(run: TaskRun) -> Written | None:
    """Render the run's report into its folder. A run without a training job has none.

    Raises:
        OSError: disk full, no permission, ...
    """
    from ett_reports.reader import LogError  # not at import: DAG files import this module at every parse
    from ett_reports.render.files import write_reports
    from ett_reports.timeline import TimelineError

    spec = run.spec.refresh
    try:
        written = write_reports(
            run.folder.root,
            run.folder.report_dir,
            owners={str(part): owner for part, owner in spec.owners.items()},
            service_levels={str(part): level for part, level in spec.service_levels.items()},
            title=run_title(run.spec),
            spec_summary=run_summary(run.spec),
            now_ns=time.time_ns(),
        )
    except (LogError, TimelineError):
        return None
    for breach in written.breaches:
        owner = breach.owner.label if breach.owner else "nobody"
        log.warning("service level of %s broken, owner %s: %s", breach.subject, owner, breach.reason)
    return written


def _messages(folder: RunFolder) -> dict[str, str]:
    from ett_reports.reader import LogError, read_log

    try:
        return last_messages(read_log(folder.events_dir))
    except LogError:
        return {}
