"""A leave-one-out set: what each technique does on its own, and what only some of them together do (section 10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from ett_reports.compare import ComparisonRefusedError, conditions_of, differences
from ett_reports.confidence import Estimate, mean_of
from ett_reports.document import ReportDocument
from ett_reports.events import L1
from ett_reports.report import JobReport

Techniques = frozenset[str]


class Measure(StrEnum):
    """What is attributed to the techniques."""

    WALL = "wall"
    TTS = "tts"
    RECOVERY = "recovery"
    LOST = "lost"  # wall time less productive time


_VALUE: dict[Measure, Callable[[JobReport], float]] = {
    Measure.WALL: lambda job: job.wall_ns / 1e9,
    Measure.TTS: lambda job: job.l1[L1.TTS] / 1e9,
    Measure.RECOVERY: lambda job: job.l1[L1.RECOVERY] / 1e9,
    Measure.LOST: lambda job: (job.wall_ns - job.productive_ns) / 1e9,
}


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """Seconds that techniques save only together (negative: they do the same work twice, as in Eq. 4)."""

    techniques: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Seconds saved, of one measure.

    own           technique -> what is lost when it alone is left out
    total         all of them together; None without a run that has none
    interaction   total - sum of the own effects; None without `total`
    pairs         per two techniques, where a run leaves out both
    """

    measure: Measure
    full_s: Estimate
    own: dict[str, Estimate]
    total: Estimate | None
    interaction: float | None
    pairs: tuple[Interaction, ...]


def switched_on(document: ReportDocument) -> Techniques:
    """The techniques that a run had on, as its spec says. Raises ComparisonRefusedError when it does not."""
    given = document.spec.get("optimizations")
    switches = given if isinstance(given, dict) else {}
    named = {name: state for name, state in switches.items() if isinstance(state, bool)}
    if not named:
        raise ComparisonRefusedError(
            [f"{document.job.job}: its ett.json does not say which techniques were on (spec.optimizations)"]
        )
    return frozenset(name for name, state in named.items() if state)


def leave_one_out(documents: Sequence[ReportDocument], measure: Measure = Measure.LOST) -> Ablation:
    """Attribute a measure to techniques. The run with the most of them is the full one; runs may be repeated.

    Raises ComparisonRefusedError when the runs are no set, or no run leaves out exactly one technique.
    """
    groups: dict[Techniques, list[ReportDocument]] = defaultdict(list)
    for document in documents:
        groups[switched_on(document)].append(document)
    full = max(groups, key=len, default=frozenset())
    _require_a_set(groups, full)
    value = {on: mean_of([_VALUE[measure](document.job) for document in group]) for on, group in groups.items()}

    def effect(left_out: Techniques) -> float | None:
        without = value.get(full - left_out)
        return None if without is None else without.mean - value[full].mean

    own = {
        name: _difference(groups[full - {name}], groups[full], measure)
        for name in sorted(full)
        if full - {name} in groups
    }
    total = _difference(groups[frozenset()], groups[full], measure) if frozenset() in groups and full else None
    pairs = []
    for two in combinations(own, 2):
        both = effect(frozenset(two))
        if both is not None:
            pairs.append(Interaction(techniques=two, seconds=both - own[two[0]].mean - own[two[1]].mean))
    complete = total is not None and set(own) == full
    return Ablation(
        measure=measure,
        full_s=value[full],
        own=own,
        total=total,
        interaction=total.mean - sum(one.mean for one in own.values()) if complete and total is not None else None,
        pairs=tuple(pairs),
    )


def _difference(without: Sequence[ReportDocument], full: Sequence[ReportDocument], measure: Measure) -> Estimate:
    """Repeats are paired in their order; with unequal numbers only the difference of means is known."""
    values = [[_VALUE[measure](document.job) for document in group] for group in (without, full)]
    if len(values[0]) == len(values[1]):
        return mean_of([a - b for a, b in zip(*values, strict=True)])
    return Estimate(mean=mean_of(values[0]).mean - mean_of(values[1]).mean, low=None, high=None, count=1)


def _require_a_set(groups: dict[Techniques, list[ReportDocument]], full: Techniques) -> None:
    if not any(full - {name} in groups for name in full):
        names = ", ".join(sorted(full)) or "none"
        raise ComparisonRefusedError([f"no run leaves out exactly one of the full run's techniques ({names})"])
    reference = conditions_of(groups[full][0])
    for on, group in groups.items():
        if not on <= full:
            raise ComparisonRefusedError([f"a run has {', '.join(sorted(on - full))}, which the full run has not"])
        for document in group:
            found = differences(reference, conditions_of(document))
            if found:
                raise ComparisonRefusedError([f"{document.job.job}: {line}" for line in found])
