"""Removes every day what the refreshes no longer need, by the `retention` of each spec; by hand it only lists it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable, Param
from ett_airflow.housekeeping_operator import DRY_RUN, REFRESH, HousekeepingOperator

SPECS = Path(os.environ.get("ETT_SPECS") or Path(__file__).parent / "refreshes")
SCHEDULED = os.environ.get("ETT_SCHEDULE", "on") != "off"

with DAG(
    dag_id="ett_housekeeping",
    description="Removes run folders, checkpoints, anchors, caches, logs and snapshots that have expired",
    schedule=CronTriggerTimetable("30 5 * * *", timezone="UTC") if SCHEDULED else None,
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        DRY_RUN: Param(
            True,
            type="boolean",
            title="Dry run",
            description="Only list what has expired. On schedule `retention.apply` of each spec decides instead.",
        ),
        REFRESH: Param(
            None, type=["null", "string"], title="Refresh", description="Only this one. Empty: all of them."
        ),
    },
    tags=["housekeeping"],
    doc_md=__doc__,
):
    HousekeepingOperator(task_id="tidy", specs=str(SPECS), retries=1, retry_delay=timedelta(minutes=5))
