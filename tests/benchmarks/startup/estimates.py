"""Medians and their ratios with 95% intervals from resampling, and what an interval allows to say."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations_with_replacement

from ett_reports.confidence import LEVEL

EXACT_UP_TO = 8
RESAMPLES = 10_000
"""Of up to 8 runs the bootstrap is exact, every resample by its chance; of more it draws so many, seeded."""


class Verdict(StrEnum):
    """What a ratio says; of times, below 1 is faster."""

    FASTER = "faster"
    SLOWER = "slower"
    INDISTINGUISHABLE = "indistinguishable"
    UNDECIDED = "too few runs"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and its interval; `low` and `high` are None with fewer than three runs, which say nothing of spread."""

    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def verdict(self) -> Verdict:
        """Of a ratio: whether the interval leaves 1 out.

        >>> Interval(value=0.9, low=0.8, high=1.1, count=5).verdict
        <Verdict.INDISTINGUISHABLE: 'indistinguishable'>
        """
        if self.low is None or self.high is None:
            return Verdict.UNDECIDED
        if self.low <= 1 <= self.high:
            return Verdict.INDISTINGUISHABLE
        return Verdict.FASTER if self.high < 1 else Verdict.SLOWER


Runs = Mapping[int, float]
"""One measure of one cell, by round."""


def median_of(runs: Runs) -> Interval | None:
    """The median; None without a run."""
    values = list(runs.values())
    return _interval(values, statistics.median) if values else None


def ratio_of(runs: Runs, baseline: Runs) -> Interval | None:
    """Ratio of the medians over the rounds that both have: rounds are resampled whole, so drift of the host cancels.

    None without a common round, or when the baseline is zero.
    """
    rounds = sorted(runs.keys() & baseline.keys())
    pairs = [(runs[number], baseline[number]) for number in rounds]
    if not pairs or any(before <= 0 for _, before in pairs):
        return None
    return _interval(pairs, _ratio)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(after for after, _ in pairs) / statistics.median(before for _, before in pairs)


def _interval(sample: Sequence, estimate: Callable) -> Interval:
    value, count = estimate(sample), len(sample)
    if count < 3:
        return Interval(value=value, low=None, high=None, count=count)
    found = sorted((estimate(drawn), ways) for drawn, ways in _resamples(sample))
    tail = (1 - LEVEL) / 2 * sum(ways for _, ways in found)
    return Interval(value=value, low=_beyond(found, tail), high=_beyond(reversed(found), tail), count=count)


def _beyond(found: Iterable[tuple[float, int]], tail: float) -> float:
    """The first estimate that is not within the tail."""
    passed = 0
    for estimate, ways in found:
        passed += ways
        if passed > tail:
            return estimate
    raise AssertionError("a tail is less than the whole")


def _resamples(sample: Sequence) -> Iterator[tuple[Sequence, int]]:
    """Resamples and in how many orders each can be drawn."""
    count = len(sample)
    if count <= EXACT_UP_TO:
        for places in combinations_with_replacement(range(count), count):
            ways = math.factorial(count)
            for times in Counter(places).values():
                ways //= math.factorial(times)
            yield [sample[place] for place in places], ways
        return
    draw = random.Random(count)
    for _ in range(RESAMPLES):
        yield draw.choices(sample, k=count), 1
