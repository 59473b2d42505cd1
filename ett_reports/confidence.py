"""Intervals of confidence with the standard library alone: Student's t for means, Garwood's for a Poisson rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean and its interval. low and high are None with fewer than two observations: one says nothing of spread."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_of(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Student's interval of the mean of independent values. Raises ValueError for none."""
    count = len(values)
    if not count:
        raise ValueError("no values: a mean needs at least one")
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean=mean, low=None, high=None, count=1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    margin = t_quantile((1 + level) / 2, count - 1) * math.sqrt(variance / count)
    return Estimate(mean=mean, low=mean - margin, high=mean + margin, count=count)


def poisson_bounds(events: int, level: float = LEVEL) -> tuple[float, float]:
    """Exact bounds of the expected number of events when `events` were seen. For 0 the upper one is one-sided, 3.0.

    With none seen the whole risk is on one side: P(0 events) = 1 - level at -ln(1 - level), the rule of three.
    """
    if events < 0:
        raise ValueError(f"{events} events: a count is not negative")
    if events == 0:
        return 0.0, -math.log(1 - level)
    tail = (1 - level) / 2
    low = _bisect(lambda mean: poisson_cdf(events - 1, mean) - (1 - tail), 0.0, float(events))
    high = _bisect(lambda mean: poisson_cdf(events, mean) - tail, float(events), events + 10 * math.sqrt(events) + 20)
    return low, high


def poisson_cdf(events: int, mean: float) -> float:
    """P(N <= events) for a Poisson mean."""
    if mean == 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1))


def t_quantile(probability: float, degrees: int) -> float:
    """The value below which Student's t with `degrees` of freedom falls with `probability` in (0.5, 1)."""
    high = 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    return _bisect(lambda value: probability - t_cdf(value, degrees), 0.0, high)


def t_cdf(value: float, degrees: int) -> float:
    """P(T <= value) for value >= 0, from the regularized incomplete beta function."""
    return 1 - 0.5 * _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Lentz's method for the continued fraction of the incomplete beta function."""
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + numerator * d) or tiny)
            c = (1 + numerator / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return fraction


def _bisect(falling: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a function that falls from positive at `low` to negative at `high`."""
    for _ in range(200):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
