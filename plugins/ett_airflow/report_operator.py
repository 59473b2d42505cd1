"""The report task: HTML, JSON and terminal table; red when the refresh did not reach a registered snapshot."""

from __future__ import annotations

import logging
import time
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from ett_airflow.airflow_api import AirflowApiError
from ett_airflow.ett_sensor import join_airflow
from ett_airflow.job_operator import StampedOperator, TaskRun
from ett_airflow.outcome import first_failure, last_messages, registered_snapshot
from ett_airflow.window import ONE_DAY
from ett_reports.events import Point
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec, Window

log = logging.getLogger(__name__)


class RefreshFailedError(AirflowFailException):
    """The refresh ended without a new live snapshot. The report is written; the run must not be green."""


class ReportOperator(StampedOperator):
    """Runs whatever came before. The run's colour is this task's: it is the last one."""

    def execute(self, context: Context) -> Any:
        return self.stamped(context, Point.TASK_CODE_START, lambda run: self._report(run, context))

    def _report(self, run: TaskRun, context: Context) -> dict[str, str]:
        try:
            join_airflow(run, context)
        except AirflowApiError as error:
            self.log.warning("Airflow's own record is missing, the report says degraded: %s", error)
        written = write_run_reports(run)
        for kind, path in written.items():
            self.log.info("%s: %s", kind, path)
        self._refuse_green_without_snapshot(run, context)
        return written

    def _refuse_green_without_snapshot(self, run: TaskRun, context: Context) -> None:
        states = RuntimeTaskInstance.get_task_states(dag_id=context["dag"].dag_id, run_ids=[context["run_id"]])
        failure = first_failure(states.get(context["run_id"], {}), _messages(run.folder))
        if failure is not None:
            raise RefreshFailedError(f"the refresh failed in {failure}")
        if registered_snapshot(run.folder) is None:
            raise RefreshFailedError(
                "every task ended green, yet no snapshot of this run was ever registered: clear publish to run it"
            )


def write_run_reports(run: TaskRun) -> dict[str, str]:
    """Render the run's report into its folder; returns the files by kind. A run without a training job has none."""
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
            title=f"{spec.name}, {_days(run.spec.run.window)}",
            spec_summary=_summary(run.spec),
            now_ns=time.time_ns(),
        )
    except (LogError, TimelineError):
        return {}
    for breach in written.breaches:
        owner = breach.owner.label if breach.owner else "nobody"
        log.warning("service level of %s broken, owner %s: %s", breach.subject, owner, breach.reason)
    return {str(kind): str(path) for kind, path in written.paths.items()}


def _days(window: Window) -> str:
    last = window.end - ONE_DAY
    return f"{window.start}" if window.start == last else f"{window.start} to {last}"


def _summary(spec: RunSpec) -> dict[str, Any]:
    """What a reader of the report wants to know of the run, and what comparing two runs needs."""
    refresh, run = spec.refresh, spec.run
    return {
        "model": refresh.model.model_dump(mode="json"),
        "ranks": refresh.resources.ranks,
        "scheduler": refresh.resources.scheduler,
        "checkpoint_interval_s": refresh.checkpoint.interval_s,
        "optimizations": refresh.optimizations.resolved(),
        "training": refresh.training.model_dump(mode="json"),
        "run": run.run,
        "run_type": str(run.run_type),
        "window": f"{run.window.start} to {run.window.end} (exclusive)",
        "warm_start": run.warm_start.run if run.warm_start else "none",
        "params": run.params,
    }


def _messages(folder: RunFolder) -> dict[str, str]:
    from ett_reports.reader import LogError, read_log

    try:
        return last_messages(read_log(folder.events_dir))
    except LogError:
        return {}
