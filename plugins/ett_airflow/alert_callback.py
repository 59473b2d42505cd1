"""The DAG's own failure callback: a run whose report could not even run is not red in silence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from ett_airflow.generation import RunIdentity
from ett_airflow.outcome import TaskFailure, last_messages
from trainer.launch import launcher_for
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RefreshSpec, SpecError, load_run_spec

log = logging.getLogger(__name__)


class TellOfRedRun:
    """Called by the DAG processor when a run has ended red; tells what the report, if it ran, has not told."""

    def __init__(self, refresh: RefreshSpec) -> None:
        self.refresh = refresh

    def __call__(self, context: Mapping[str, Any]) -> None:
        try:
            self._tell(str(context["run_id"]), context)
        except Exception:  # nobody is helped if this hides why the run is red
            log.exception("the owners of %s were not told of its red run", self.refresh.name)

    def _tell(self, run_id: str, context: Mapping[str, Any]) -> None:
        from ett_airflow.alert_failure import red_run  # not at import: DAG files import this at every parse
        from ett_airflow.alerts import AlertedRun, alert_red

        folder = RunIdentity(self.refresh.name, run_id).folder
        if is_trial(folder):
            return
        red = red_run(folder, launcher_for(self.refresh.resources.scheduler), _failure(folder, context))
        run = AlertedRun(refresh=self.refresh, run_id=run_id, window_end=_window_end(folder, context))
        alert_red(run, dict(context), red)


def is_trial(folder: RunFolder) -> bool:
    """Whether the run is a tuning run: a person looks at it, and it says nothing about the daily refresh."""
    try:
        return load_run_spec(folder.spec_path).run.purpose is Purpose.TUNING
    except SpecError:
        return False


def _failure(folder: RunFolder, context: Mapping[str, Any]) -> TaskFailure:
    """The task that Airflow saw last, in its own words if it left any; without a resolved spec it was the first."""
    last = context.get("ti")
    task = "check_schema" if not folder.spec_path.exists() else "report" if last is None else str(last.task_id)
    told = _messages(folder).get(task) or f"ended red ({context.get('reason', 'no reason given')}), see its log"
    return TaskFailure(task, "failed", told)


def _messages(folder: RunFolder) -> dict[str, str]:
    from ett_reports.reader import LogError, read_log

    try:
        return last_messages(read_log(folder.events_dir))
    except LogError:
        return {}


def _window_end(folder: RunFolder, context: Mapping[str, Any]) -> date:
    """Of the resolved run; else the end of its data interval, which is how a run without a folder was meant."""
    try:
        return load_run_spec(folder.spec_path).run.window.end
    except SpecError:
        dag_run = context.get("dag_run")
        end = getattr(dag_run, "data_interval_end", None)
        return end.date() if end is not None else datetime.now(UTC).date()
