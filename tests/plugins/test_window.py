"""Which days a run trains on: explicit in each run, however it was triggered."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from ett_airflow.anchors import Anchor
from ett_airflow.window import Decision, NothingToTrainError, Warm, WindowError, WindowRequest, decide

from tests.plugins.conftest import SPEC_PATH, at_three
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RefreshSpec, RunInfo, RunSpec, RunType, Window, load_spec, with_overrides

SPEC = load_spec(SPEC_PATH)  # first_window_days: 2
LANDED = [date(2026, 11, 20) + timedelta(days=n) for n in range(9)]  # 20 to 28 November
TODAY = date(2026, 11, 29)
INTERVAL = (at_three(2026, 11, 25), at_three(2026, 11, 26))


def anchor(run: str, start: int, end: int, spec: RefreshSpec = SPEC, purpose: Purpose = Purpose.DAILY) -> Anchor:
    window = Window(start=date(2026, 11, start), end=date(2026, 11, end))
    info = RunInfo(run=run, window=window, purpose=purpose)
    return Anchor(RunFolder(Path("/runs/tiny") / run), RunSpec(refresh=spec, run=info))


OLD, NEW = anchor("old", 20, 23), anchor("new", 23, 25)


def decided(
    *,
    anchors: tuple[Anchor, ...] = (),
    run_type: RunType = RunType.MANUAL,
    interval: tuple[object, object] | None = None,
    start: date | None = None,
    end: date | None = None,
    number: int | None = None,
    warm_start: str = Warm.AUTO,
    landed: list[date] = LANDED,
    purpose: Purpose = Purpose.DAILY,
) -> Decision:
    request = WindowRequest(
        run_type=run_type,
        purpose=purpose,
        days=number,
        interval=interval,  # type: ignore[arg-type]
        window_start=start,
        window_end=end,
        warm_start=warm_start,
    )
    return decide(SPEC, request, anchors=sorted(anchors, key=lambda each: each.window.end), landed=landed, today=TODAY)


def days(decision: Decision) -> tuple[int, int]:
    return decision.window.start.day, decision.window.end.day


@pytest.mark.parametrize("run_type", [RunType.SCHEDULED, RunType.BACKFILL])
def test_a_scheduled_or_backfilled_run_takes_its_data_interval_and_the_newest_anchor_before_it(
    run_type: RunType,
) -> None:
    decision = decided(anchors=(OLD, NEW), run_type=run_type, interval=INTERVAL)
    assert days(decision) == (25, 26)
    assert decision.anchor == NEW


def test_a_backfilled_day_starts_from_an_anchor_that_has_not_seen_it() -> None:
    decision = decided(anchors=(OLD, NEW), run_type=RunType.BACKFILL, interval=(at_three(2026, 11, 24), INTERVAL[0]))
    assert days(decision) == (24, 25)
    assert decision.anchor == OLD


def test_the_first_scheduled_run_takes_the_first_window_up_to_its_day() -> None:
    decision = decided(run_type=RunType.SCHEDULED, interval=INTERVAL)
    assert days(decision) == (24, 26)
    assert decision.anchor is None


def test_a_weekly_interval_is_trained_whole() -> None:
    decision = decided(
        anchors=(OLD,), run_type=RunType.SCHEDULED, interval=(at_three(2026, 11, 23), at_three(2026, 11, 30))
    )
    assert days(decision) == (23, 30)


@pytest.mark.parametrize("run_type", [RunType.MANUAL, RunType.ASSET])
@pytest.mark.parametrize("interval", [None, INTERVAL, (INTERVAL[0], INTERVAL[0])])
def test_without_dates_of_its_own_a_run_takes_the_first_untrained_day(run_type: RunType, interval: object) -> None:
    decision = decided(anchors=(OLD, NEW), run_type=run_type, interval=interval)  # type: ignore[arg-type]
    assert days(decision) == (25, 26)
    assert decision.anchor == NEW


def test_a_day_without_rows_is_passed_over() -> None:
    landed = [day for day in LANDED if day.day != 25]
    assert days(decided(anchors=(NEW,), landed=landed)) == (26, 27)


def test_the_first_manual_run_takes_the_first_window_up_to_the_newest_day() -> None:
    assert days(decided()) == (27, 29)


def test_without_any_landed_day_the_first_window_ends_yesterday() -> None:
    assert days(decided(landed=[])) == (27, 29)


def test_params_say_the_window_whatever_else_is_known() -> None:
    decision = decided(
        anchors=(OLD, NEW),
        run_type=RunType.SCHEDULED,
        interval=INTERVAL,
        start=date(2026, 11, 23),
        end=date(2026, 11, 27),
    )
    assert days(decision) == (23, 27)
    assert decision.anchor == OLD


def test_one_date_is_one_day() -> None:
    assert days(decided(anchors=(NEW,), start=date(2026, 11, 27))) == (27, 28)


def test_a_window_before_every_anchor_starts_from_nothing() -> None:
    assert decided(anchors=(OLD, NEW), start=date(2026, 11, 21)).anchor is None


def test_from_scratch_a_scheduled_day_is_the_end_of_a_first_window() -> None:
    decision = decided(anchors=(NEW,), run_type=RunType.SCHEDULED, interval=INTERVAL, warm_start=Warm.NONE)
    assert days(decision) == (24, 26)
    assert decision.anchor is None


def test_a_named_run_is_started_from() -> None:
    assert decided(anchors=(OLD, NEW), start=date(2026, 11, 26), warm_start="old").anchor == OLD


def test_an_anchor_of_another_model_is_passed_over() -> None:
    wider = with_overrides(SPEC, {"model": {"over_arch": [32]}})
    assert decided(anchors=(OLD, anchor("wide", 23, 25, wider)), start=date(2026, 11, 26)).anchor == OLD
    with pytest.raises(WindowError, match="model or contract differs"):
        decided(anchors=(anchor("wide", 23, 25, wider),), start=date(2026, 11, 26), warm_start="wide")


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        ({"number": 3}, (26, 29)),
        ({"number": 3, "start": date(2026, 11, 21)}, (21, 24)),
        ({"number": 3, "end": date(2026, 11, 25)}, (22, 25)),
        ({"number": 1, "start": date(2026, 11, 21), "end": date(2026, 11, 22)}, (21, 22)),
    ],
)
def test_a_number_of_days_fills_in_for_the_bound_that_is_not_given(
    arguments: dict[str, object], window: tuple[int, int]
) -> None:
    assert days(decided(anchors=(OLD,), **arguments)) == window  # type: ignore[arg-type]


def test_a_trial_takes_the_newest_day_also_when_it_is_trained_and_starts_where_the_daily_run_did() -> None:
    decision = decided(anchors=(OLD, anchor("newest", 28, 29)), purpose=Purpose.TUNING)
    assert days(decision) == (28, 29)
    assert decision.anchor == OLD


def test_no_run_starts_from_a_trial_unless_it_names_it() -> None:
    trial = anchor("trial", 25, 27, purpose=Purpose.TUNING)
    assert decided(anchors=(OLD, NEW, trial), start=date(2026, 11, 28)).anchor == NEW
    assert days(decided(anchors=(OLD, NEW, trial))) == (25, 26), "its days are still to be trained"
    assert decided(anchors=(OLD, NEW, trial), start=date(2026, 11, 28), warm_start="trial").anchor == trial


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": 2, "start": date(2026, 11, 21), "end": date(2026, 11, 22)}, "are 1 days, days says 2"),
        ({"end": date(2026, 11, 26)}, "without window_start"),
        ({"start": date(2026, 11, 26), "end": date(2026, 11, 26)}, "must be after"),
        ({"warm_start": "nobody"}, "no such run has a completed anchor"),
        ({"start": date(2026, 11, 22), "warm_start": "old"}, "past this window's start"),
    ],
)
def test_contradictions_are_refused_with_what_to_change(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(WindowError, match=message):
        decided(anchors=(OLD,), **arguments)  # type: ignore[arg-type]


def test_when_every_landed_day_is_trained_it_says_so() -> None:
    with pytest.raises(NothingToTrainError, match="2026-11-28"):
        decided(anchors=(anchor("all", 20, 29),))
