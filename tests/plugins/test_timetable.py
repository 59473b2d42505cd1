"""When days are scheduled: the newest first of all, then each in order, also those that an outage has missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pendulum
import pytest
from airflow.timetables.base import DataInterval, TimeRestriction
from ett_airflow.timetable import CatchUpTimetable, schedule_of

from tests.plugins.conftest import SPEC_PATH
from trainer.spec import load_spec

DAILY = CatchUpTimetable("0 3 * * *", timezone="UTC")
NEVER_BOUND = TimeRestriction(earliest=pendulum.datetime(2020, 1, 1), latest=None, catchup=True)


def interval_after(last: DataInterval | None) -> DataInterval:
    info = DAILY.next_dagrun_info(last_automated_data_interval=last, restriction=NEVER_BOUND)
    assert info is not None
    return info.data_interval


def test_a_dag_that_never_ran_begins_with_the_newest_complete_day() -> None:
    now = datetime.now(UTC)
    first = interval_after(None)
    assert now - timedelta(days=1, minutes=1) <= first.end <= now + timedelta(minutes=1)


def test_after_an_outage_each_missed_day_has_its_turn_in_order() -> None:
    last = DataInterval(pendulum.datetime(2026, 11, 1, 3), pendulum.datetime(2026, 11, 2, 3))
    days = []
    for _ in range(5):
        last = interval_after(last)
        days.append(last.start.day)
    assert days == [2, 3, 4, 5, 6]


def test_a_backfill_has_every_day_of_its_range() -> None:
    first, last = pendulum.datetime(2026, 11, 2, 3), pendulum.datetime(2026, 11, 5, 3)
    days, interval, asked = [], None, TimeRestriction(earliest=first, latest=last, catchup=True)
    while info := DAILY.next_dagrun_info(last_automated_data_interval=interval, restriction=asked):
        interval = info.data_interval
        days.append(interval.start.day)
    assert days == [2, 3, 4, 5]


def test_it_survives_serialization() -> None:
    again = CatchUpTimetable.deserialize(DAILY.serialize())
    assert type(again) is CatchUpTimetable
    assert again.serialize() == DAILY.serialize()


@pytest.mark.parametrize(("cron", "hours"), [("0 3 * * *", 21 + 5), ("0 0 * * *", 24 + 5), ("30 4 * * 1", 163.5 + 5)])
def test_a_snapshot_is_due_a_time_after_the_end_of_its_last_day(cron: str, hours: float) -> None:
    reference = CatchUpTimetable(cron, timezone="UTC").freshness_reference(timedelta(hours=5))
    assert reference == timedelta(hours=hours)  # from the start of the interval, which is the run's logical date


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "CatchUpTimetable"),
        ({"on_assets": ["landing"]}, "AssetOrTimeSchedule"),
        ({"schedule": "none", "on_assets": ["landing", "other/snapshot"]}, "AssetAny"),
        ({"schedule": "none"}, "NoneType"),
    ],
)
def test_a_refresh_is_scheduled_by_cron_by_assets_by_both_or_by_hand(fields: dict[str, object], kind: str) -> None:
    assert type(schedule_of(load_spec(SPEC_PATH).model_copy(update=fields))).__name__ == kind
