"""The checkpoint interval: Eq. 2, Young and Daly, no failures at all, and Fig. 3."""

from __future__ import annotations

import dataclasses
import math
import re
from xml.etree import ElementTree

import pytest

from ett_reports.commands.interval import fig_3
from ett_reports.confidence import mean_of, poisson_bounds, t_quantile
from ett_reports.interval import (
    Behaviour,
    Formula,
    IntervalError,
    advise,
    behaviour_of,
    best_interval,
    curves,
    waste,
)
from ett_reports.render.chart import round_ticks
from tests.ett_reports.render.sample_reports import failed_once_job

HALF_DAY = Behaviour(blocking_s=15, loop_s=12 * 3600, failures=3)


@pytest.mark.parametrize(("blocking", "interval"), [(15, 657), (30, 930), (45, 1138)])
def test_the_paper_s_three_scenarios(blocking: float, interval: int) -> None:
    best = best_interval(dataclasses.replace(HALF_DAY, blocking_s=blocking))
    assert round(best.interval_s) == interval
    assert best.formula is Formula.YOUNG


@pytest.mark.parametrize("blocking", [15, 30, 45, 140])
def test_young_s_interval_is_the_minimum_of_eq_2(blocking: float) -> None:
    behaviour = dataclasses.replace(HALF_DAY, blocking_s=blocking)
    best = best_interval(behaviour).interval_s
    least = waste(behaviour, best).total_s
    assert all(waste(behaviour, best * factor).total_s > least for factor in (0.5, 0.9, 1.1, 2))


def test_eq_2_term_by_term() -> None:
    cost = waste(HALF_DAY, 1800)
    assert cost.unsaved_s == 3 * 1800 / 2
    assert cost.blocking_s == 43200 / 1800 * 15
    assert cost.total_s == 2700 + 360


def test_daly_takes_over_above_one_percent_of_the_mean_time_between_failures() -> None:
    mean_time = 1000.0
    below = best_interval(Behaviour(blocking_s=10, loop_s=mean_time, failures=1))
    above = best_interval(Behaviour(blocking_s=10.001, loop_s=mean_time, failures=1))
    assert (below.formula, above.formula) == (Formula.YOUNG, Formula.DALY)
    x = 10.001 / 2000
    expected = math.sqrt(2 * 10.001 * 1000) * (1 + math.sqrt(x) / 3 + x / 9) - 10.001
    assert above.interval_s == pytest.approx(expected)


def test_a_save_longer_than_twice_the_mean_time_leaves_the_mean_time() -> None:
    best = best_interval(Behaviour(blocking_s=2000, loop_s=1000, failures=1))
    assert (best.interval_s, best.formula) == (1000, Formula.MEAN_TIME_BETWEEN_FAILURES)
    almost = best_interval(Behaviour(blocking_s=1999, loop_s=1000, failures=1))
    assert almost.formula is Formula.DALY


def test_an_asynchronous_save_must_be_durable_before_the_next() -> None:
    behaviour = dataclasses.replace(HALF_DAY, blocking_s=0.1, durable_s=120)
    best = best_interval(behaviour)
    assert (best.interval_s, best.formula) == (120, Formula.DURABILITY)
    assert waste(behaviour, 120).unsaved_s == 3 * (60 + 120)


def test_no_failure_has_no_optimum_and_is_advised_from_the_upper_bound() -> None:
    none = dataclasses.replace(HALF_DAY, failures=0)
    with pytest.raises(IntervalError, match="no optimum"):
        best_interval(none)
    advice = advise(none, present_s=1800)
    assert advice.failures_high == 3.0
    assert advice.best.interval_s == best_interval(HALF_DAY).interval_s
    assert advice.at_most_s is None
    assert "No failure was seen" in advice.text


def test_advice_says_what_the_present_interval_costs_with_its_uncertainty() -> None:
    advice = advise(HALF_DAY, present_s=3600)
    assert advice.present and advice.present_low and advice.present_high
    assert advice.present_low.total_s < advice.present.total_s < advice.present_high.total_s
    assert advice.saving_s == pytest.approx(advice.present.total_s - advice.best_cost.total_s)
    assert advice.at_most_s is not None and advice.at_least_s < advice.best.interval_s < advice.at_most_s


def test_advice_leaves_a_good_interval_alone() -> None:
    assert "leave it" in advise(HALF_DAY, present_s=700).text
    assert "leave it" not in advise(HALF_DAY, present_s=7000).text


@pytest.mark.parametrize(
    "figures",
    [
        {"blocking_s": -1, "loop_s": 10, "failures": 1},
        {"blocking_s": 1, "loop_s": 0, "failures": 1},
        {"blocking_s": 1, "loop_s": float("nan"), "failures": 1},
        {"blocking_s": 1, "loop_s": 10, "failures": float("inf")},
    ],
)
def test_impossible_figures_are_refused(figures: dict[str, float]) -> None:
    with pytest.raises(IntervalError, match="expected"):
        Behaviour(**figures)


def test_figures_of_a_job_are_its_report_s() -> None:
    behaviour = behaviour_of(failed_once_job())
    assert (behaviour.blocking_s, behaviour.durable_s) == (1.5, 3.0)
    job = failed_once_job()
    with pytest.raises(IntervalError, match="saved no checkpoint"):
        behaviour_of(dataclasses.replace(job, checkpoints=dataclasses.replace(job.checkpoints, saves=0)))


def test_fig_3_is_convex_with_its_minimum_marked() -> None:
    steps = [60.0 * minute for minute in range(2, 60)]
    for curve in curves(HALF_DAY, (15, 30, 45), steps):
        heights = [share for _, share in curve.points]
        lowest = heights.index(min(heights))
        assert heights[:lowest] == sorted(heights[:lowest], reverse=True)
        assert heights[lowest:] == sorted(heights[lowest:])
        assert abs(steps[lowest] - curve.best[0]) <= 60


def test_fig_3_is_a_well_formed_picture_with_a_curve_per_scenario() -> None:
    picture = fig_3(HALF_DAY, [15, 30, 45])
    tree = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{space}polyline")) == 3
    texts = {"".join(element.itertext()) for element in tree.iter(f"{space}text")}
    assert {"657 s", "930 s", "1,138 s", "15 s blocked", "30 s blocked", "45 s blocked"} <= texts
    assert not re.search(r"<script|href=|url\((?!#)", picture)


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert round_ticks(0, 57) == [0, 10, 20, 30, 40, 50]
    assert round_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (100, 1.9840)])
def test_student_s_quantiles_are_the_printed_ones(degrees: int, value: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(("events", "low", "high"), [(1, 0.0253, 5.572), (3, 0.6187, 8.767), (10, 4.795, 18.39)])
def test_poisson_bounds_are_garwood_s(events: int, low: float, high: float) -> None:
    assert poisson_bounds(events) == pytest.approx((low, high), rel=1e-3)


def test_one_value_has_a_mean_and_no_interval() -> None:
    one = mean_of([5.0])
    assert (one.mean, one.low, one.high) == (5.0, None, None)
    two = mean_of([4.0, 6.0])
    assert two.low is not None and two.low == pytest.approx(5 - 12.7062, abs=1e-3)
