"""The checkpoint interval (section 9; paper IV-C, Eq. 2 and Fig. 3): what it costs, and the best one. Seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ett_reports.confidence import LEVEL, poisson_bounds
from ett_reports.report import JobReport

YOUNG_UP_TO = 0.01
"""Young's formula is used while a save blocks for at most this share of the mean time between failures."""

NONE_SEEN = 3.0
"""The 95% upper bound of the expected failures when none was seen (rule of three): the rate is at most 3/T."""


class IntervalError(ValueError):
    """Figures from which no interval follows; the message says which and what is needed."""


class Formula(StrEnum):
    """Where the best interval comes from."""

    YOUNG = "young"
    DALY = "daly"
    MEAN_TIME_BETWEEN_FAILURES = "mean_time_between_failures"  # saving takes so long that only one save fits
    DURABILITY = "durability"  # a save must be durable before the next one starts


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a job's checkpoints and failures are like. Seconds.

    blocking_s   CSBT: how long one save blocks the loop
    loop_s       T: time in the loop
    failures     F: failures that lost unsaved progress; may be a rate times T, so not whole
    durable_s    D: how long an asynchronous save takes to become durable
    """

    blocking_s: float
    loop_s: float
    failures: float
    durable_s: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("blocking_s", 0.0), ("failures", 0.0), ("durable_s", 0.0)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise IntervalError(f"{name} is {value}: expected a number of at least {least:g}")
        if not math.isfinite(self.loop_s) or self.loop_s <= 0:
            raise IntervalError(
                f"loop_s is {self.loop_s}: expected the seconds that the job spent in its loop, above 0"
            )

    @property
    def mean_time_between_failures_s(self) -> float:
        """M = T / F; infinite without a failure."""
        return self.loop_s / self.failures if self.failures else math.inf


@dataclass(frozen=True, kw_only=True)
class Waste:
    """WTT of Eq. 2 at one interval: UTT + NoS * CSBT. Seconds."""

    interval_s: float
    unsaved_s: float
    blocking_s: float

    @property
    def total_s(self) -> float:
        return self.unsaved_s + self.blocking_s


@dataclass(frozen=True, kw_only=True)
class Best:
    """The interval with the least waste, and the formula that gave it. The interval excludes the save itself."""

    interval_s: float
    formula: Formula


def waste(behaviour: Behaviour, interval_s: float) -> Waste:
    """Eq. 2: UTT = F * (I / 2 + D), NoS = T / I. Raises IntervalError for an interval that is not above 0."""
    if not interval_s > 0 or not math.isfinite(interval_s):
        raise IntervalError(f"interval {interval_s} s: expected a number above 0")
    return Waste(
        interval_s=interval_s,
        unsaved_s=behaviour.failures * (interval_s / 2 + behaviour.durable_s),
        blocking_s=behaviour.loop_s / interval_s * behaviour.blocking_s,
    )


def best_interval(behaviour: Behaviour) -> Best:
    """Young's interval while CSBT <= 0.01 * M, else Daly's; never below D. Raises IntervalError when F or CSBT is 0."""
    if not behaviour.failures:
        raise IntervalError("no failure lost progress, so there is no optimum: use `advise`, which bounds the rate")
    if not behaviour.blocking_s and behaviour.durable_s:
        return Best(interval_s=behaviour.durable_s, formula=Formula.DURABILITY)
    if not behaviour.blocking_s:
        raise IntervalError("saves do not block the loop, so the shortest interval is best: save as often as they end")
    best = _unbounded(behaviour.blocking_s, behaviour.mean_time_between_failures_s)
    if best.interval_s < behaviour.durable_s:
        return Best(interval_s=behaviour.durable_s, formula=Formula.DURABILITY)
    return best


def _unbounded(blocking: float, mean_time: float) -> Best:
    young = math.sqrt(2 * blocking * mean_time)
    if blocking <= YOUNG_UP_TO * mean_time:
        return Best(interval_s=young, formula=Formula.YOUNG)
    x = blocking / (2 * mean_time)
    if x < 1:
        daly = young * (1 + math.sqrt(x) / 3 + x / 9) - blocking
        return Best(interval_s=daly, formula=Formula.DALY)
    return Best(interval_s=mean_time, formula=Formula.MEAN_TIME_BETWEEN_FAILURES)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do about the interval.

    failures_low/high   95% bounds of the number of failures that such a job meets; with none seen, 0 and 3
    at_most_s           the best interval at the low bound (None = no bound: nothing ever fails), at_least_s at the high
    best                at the failures that were seen; with none, at the upper bound
    present             what the present interval costs, if it is known; present_low/high over the same bounds
    saving_s            present cost - best cost, at the same number of failures
    """

    behaviour: Behaviour
    failures_low: float
    failures_high: float
    best: Best
    best_cost: Waste
    at_least_s: float
    at_most_s: float | None
    present: Waste | None
    present_low: Waste | None
    present_high: Waste | None
    saving_s: float | None
    text: str


def advise(behaviour: Behaviour, present_s: float | None = None) -> Advice:
    """The best interval with the uncertainty of the failure rate, and what the present one costs."""
    seen = behaviour.failures
    low, high = poisson_bounds(round(seen), LEVEL) if seen else (0.0, NONE_SEEN)
    assumed = _with(behaviour, high) if not seen else behaviour
    best = best_interval(assumed)
    cost = waste(assumed, best.interval_s)
    present = None if present_s is None else waste(assumed, present_s)
    return Advice(
        behaviour=behaviour,
        failures_low=low,
        failures_high=high,
        best=best,
        best_cost=cost,
        at_least_s=best_interval(_with(behaviour, high)).interval_s,
        at_most_s=best_interval(_with(behaviour, low)).interval_s if low else None,
        present=present,
        present_low=None if present_s is None else waste(_with(behaviour, low), present_s),
        present_high=None if present_s is None else waste(_with(behaviour, high), present_s),
        saving_s=None if present is None else present.total_s - cost.total_s,
        text=_sentence(behaviour, best, cost, present),
    )


def behaviour_of(job: JobReport) -> Behaviour:
    """CSBT, T, F and D as a job's report measured them. Raises IntervalError for a job that saved nothing."""
    totals = job.checkpoints
    if not totals.saves:
        raise IntervalError(f"{job.job}: it saved no checkpoint, so what a save costs is not known: give it by hand")
    durable = sorted(totals.durable_ns)
    middle = durable[len(durable) // 2] if durable else 0
    return Behaviour(
        blocking_s=totals.blocking_ns / totals.saves / 1e9,
        loop_s=totals.in_loop_ns / 1e9,
        failures=totals.losing_failures,
        durable_s=middle / 1e9,
    )


def _with(behaviour: Behaviour, failures: float) -> Behaviour:
    return Behaviour(
        blocking_s=behaviour.blocking_s,
        loop_s=behaviour.loop_s,
        failures=failures,
        durable_s=behaviour.durable_s,
    )


def told(seconds: float) -> str:
    """Seconds as advice is read: '1,138 s', '4.2 s', '0.035 s'."""
    return f"{seconds:,.0f} s" if seconds >= 10 or not seconds else f"{seconds:.2g} s"


def _sentence(behaviour: Behaviour, best: Best, cost: Waste, present: Waste | None) -> str:
    share = 100 * cost.total_s / behaviour.loop_s
    text = f"Save every {told(best.interval_s)} ({best.formula.value})"
    text += f": {told(cost.total_s)} wasted, {share:.2f}% of the loop."
    if not behaviour.failures:
        text += " No failure was seen: this is for the 95% upper bound of the rate, 3 failures in this much time."
    if present is not None:
        text += f" The present {told(present.interval_s)} cost {told(present.total_s)}."
        if present.total_s - cost.total_s < 0.01 * behaviour.loop_s:
            text += " That is within 1% of the loop: leave it."
    return text


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of Fig. 3: (interval in s, WTT as a share of T) and its minimum."""

    blocking_s: float
    points: tuple[tuple[float, float], ...]
    best: tuple[float, float]


def curves(behaviour: Behaviour, blocking_s: Sequence[float], intervals_s: Sequence[float]) -> tuple[Curve, ...]:
    """Fig. 3: WTT% over the save interval, one curve per blocking time."""
    drawn = []
    for blocking in blocking_s:
        own = Behaviour(
            blocking_s=blocking,
            loop_s=behaviour.loop_s,
            failures=behaviour.failures,
            durable_s=behaviour.durable_s,
        )
        points = tuple((at, waste(own, at).total_s / own.loop_s) for at in intervals_s)
        best = best_interval(own).interval_s
        drawn.append(Curve(blocking_s=blocking, points=points, best=(best, waste(own, best).total_s / own.loop_s)))
    return tuple(drawn)
