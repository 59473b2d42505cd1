"""The freshness deadline of a scheduled day: when its snapshot is not live in time, the owner is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from ett_airflow.outcome import live_record
from ett_airflow.timetable import CatchUpTimetable
from ett_airflow.window import ONE_DAY
from trainer.spec import NO_SCHEDULE, RefreshSpec, load_spec

log = logging.getLogger(__name__)


def freshness_alert(spec: RefreshSpec, spec_path: Path) -> DeadlineAlert | None:
    """The DAG's `deadline`; None for a spec that has no schedule or no deadline."""
    if spec.freshness_deadline_s is None or spec.schedule == NO_SCHEDULE:
        return None
    within = timedelta(seconds=spec.freshness_deadline_s)
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=CatchUpTimetable(spec.schedule, timezone="UTC").freshness_reference(within),
        callback=AsyncCallback(deadline_missed, {"spec_path": str(spec_path)}),
        name="freshness",
    )


async def deadline_missed(*, spec_path: str, context: Mapping[str, Any]) -> str:
    """Called in the triggerer when a run is not over at its deadline; returns what it did."""
    return await asyncio.to_thread(_tell_if_late, Path(spec_path), context)


def _tell_if_late(spec_path: Path, context: Mapping[str, Any]) -> str:
    spec, run = load_spec(spec_path), context["dag_run"]
    if str(run.get("run_type")) != "scheduled" or not run.get("data_interval_end"):
        return "no scheduled day: nothing was due"  # a backfilled day was due long ago
    window_end = datetime.fromisoformat(str(run["data_interval_end"])).astimezone(UTC).date()
    live = _live_window_end(spec.name)
    if live is not None and live >= window_end:
        return f"days up to {live} (exclusive) are live: another run was in time"
    from ett_airflow.alerts import AlertedRun, alert_late

    newest = "nothing is live" if live is None else f"the live snapshot ends with {live - ONE_DAY}"
    limit = f"{spec.freshness_deadline_s or 0:.0f} s after the end of {window_end - ONE_DAY}"
    log.warning("refresh %s is late: %s, expected within %s", spec.name, newest, limit)
    alerted = AlertedRun(refresh=spec, run_id=str(run["dag_run_id"]), window_end=window_end)
    alert_late(alerted, context, figure=newest, limit=limit)
    return f"late: {newest}"


def _live_window_end(refresh: str) -> date | None:
    record = live_record(refresh)
    try:
        return date.fromisoformat(record["window"][1]) if record else None
    except (KeyError, IndexError, TypeError, ValueError):
        return None
