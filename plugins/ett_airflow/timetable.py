"""When a refresh runs: each day once, in order, also the days that an outage has missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetAny, AssetOrTimeSchedule
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from trainer.spec import NO_SCHEDULE, RefreshSpec


class CatchUpTimetable(CronDataIntervalTimetable):
    """Daily intervals that begin with the newest one and leave none out after it.

    Airflow's `catchup` either makes a run for every day since the DAG's start date, or forgets the days of an outage.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The interval behind the last one; for a DAG that never ran, the newest that is complete."""
        # A backfill asks for the days of a range, which has an end; the DAG itself has none.
        every_day = last_automated_data_interval is not None or restriction.latest is not None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval,
            restriction=restriction._replace(catchup=every_day),
        )

    def freshness_reference(self, within: timedelta) -> timedelta:
        """How long after a run's logical date its snapshot is due, `within` the end of its last day (UTC)."""
        start = self._get_next(datetime(2020, 1, 6, tzinfo=UTC))  # type: ignore[arg-type]
        end = self._get_next(start)
        midnight = datetime(end.year, end.month, end.day, tzinfo=UTC)
        # A plain timedelta: Airflow cannot store pendulum's.
        return timedelta(seconds=midnight.timestamp() - start.timestamp()) + within


def schedule_of(spec: RefreshSpec) -> Any:
    """What a DAG's `schedule` is: cron, assets, both or none."""
    daily = CatchUpTimetable(spec.schedule, timezone="UTC") if spec.schedule != NO_SCHEDULE else None
    if not spec.on_assets:
        return daily
    either = AssetAny(*(Asset.ref(name=name) for name in spec.on_assets))
    if daily is None:
        return either
    return AssetOrTimeSchedule(timetable=daily, assets=either)  # type: ignore[arg-type]  # core's timetables serve too
