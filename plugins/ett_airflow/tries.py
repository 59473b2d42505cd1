"""Airflow's own record of a run, as points of the run's event log (ett-metric section 12)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from ett_airflow.airflow_api import AirflowApi
from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.run_folder import RunFolder

CONNECTION = "ett_airflow_api"


@dataclass(frozen=True, kw_only=True)
class TaskTry:
    """One try as Airflow stamped it; Unix ns, None where it has no stamp."""

    task: str
    try_number: int
    state: str | None
    scheduled: int | None
    queued: int | None
    start: int | None
    end: int | None


@dataclass(frozen=True, kw_only=True)
class AirflowRecord:
    """What Airflow knows of one run now."""

    queued: int | None
    start: int | None
    end: int | None
    state: str | None
    run_type: str | None
    tries: Sequence[TaskTry]


def read_record(api: AirflowApi, dag_id: str, run_id: str, *, since_ns: int | None = None) -> AirflowRecord:
    """Ask Airflow for the run and all its tries, or those that had not ended at `since_ns` (Unix ns).

    Raises:
        AirflowApiError: it does not answer.
    """
    run = api.dag_run(dag_id, run_id)
    tries = [
        _task_try(each)
        for task in api.task_instances(dag_id, run_id)
        for each in api.tries(dag_id, run_id, task["task_id"])
        if each["try_number"] > 0  # 0: a task that has not had its turn
    ]
    tries = [each for each in tries if since_ns is None or each.end is None or each.end >= since_ns]
    return AirflowRecord(
        queued=_unix_ns(run.get("queued_at")),
        start=_unix_ns(run.get("start_date")),
        end=_unix_ns(run.get("end_date")),
        state=run.get("state"),
        run_type=run.get("run_type"),
        tries=tries,
    )


def write_record(folder: RunFolder, record: AirflowRecord, *, window_end: date) -> None:
    """Add the record to the run's event log. Written again it repeats facts, which readers take once."""
    identity = ProcessIdentity(job=folder.job, source=Source.AIRFLOW, process=f"airflow-rest-{os.getpid()}")
    with Recorder(folder.events_dir, identity) as recorder:
        recorder.point(
            Point.DAG_RUN,
            queued=record.queued,
            start=record.start,
            end=record.end,
            state=record.state,
            run_type=record.run_type,
            window_end=int(datetime(window_end.year, window_end.month, window_end.day, tzinfo=UTC).timestamp()) * 10**9,
        )
        for each in record.tries:
            recorder.point(
                Point.TASK_TRY,
                task=each.task,
                try_number=each.try_number,
                state=each.state,
                scheduled=each.scheduled,
                queued=each.queued,
                start=each.start,
                end=each.end,
            )


def _task_try(stamps: dict[str, Any]) -> TaskTry:
    return TaskTry(
        task=stamps["task_id"],
        try_number=stamps["try_number"],
        state=stamps.get("state"),
        scheduled=_unix_ns(stamps.get("scheduled_when")),
        queued=_unix_ns(stamps.get("queued_when")),
        start=_unix_ns(stamps.get("start_date")),
        end=_unix_ns(stamps.get("end_date")),
    )


def _unix_ns(text: str | None) -> int | None:
    if not text:
        return None
    moment = datetime.fromisoformat(text)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000
