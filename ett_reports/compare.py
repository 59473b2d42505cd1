"""Paired comparison of two runs (section 10; paper V-B, V-C): what was saved where, and what restarts repeat of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ett_reports.confidence import Estimate, mean_of
from ett_reports.document import ReportDocument
from ett_reports.events import L1, Component, Phase
from ett_reports.report import JobReport, JobState

INTERVAL_TOLERANCE = 0.1
"""Two measured checkpoint intervals within this share of each other count as the same setting."""


class ComparisonRefusedError(ValueError):
    """The runs are no pair. `differences` holds one line each: what differs, and both values."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__("these runs are no pair: " + "; ".join(self.differences))


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a pair must share. None = the run does not say."""

    model: str | None
    ranks: tuple[int, ...]
    checkpoint_interval_s: float | None
    interval_is_set: bool
    nof: int
    tts_cut_by: int | None
    state: JobState


def conditions_of(document: ReportDocument) -> Conditions:
    """The spec's word where the document carries it, else what the run itself shows."""
    job, spec = document.job, document.spec
    given = spec.get("checkpoint_interval_s")
    measured = job.checkpoints.interval_ns
    ranks = {
        attempt.world_size or len(attempt.ranks) for attempt in job.attempts if attempt.world_size or attempt.ranks
    }
    is_set = isinstance(given, int | float) and not isinstance(given, bool)
    return Conditions(
        model=_model(job, spec),
        ranks=tuple(sorted(ranks)) if "ranks" not in spec else (int(spec["ranks"]),),
        checkpoint_interval_s=float(given) if is_set else None if measured is None else measured / 1e9,  # type: ignore[arg-type]
        interval_is_set=is_set,
        nof=job.nof,
        tts_cut_by=_tts_cut_by(job),
        state=job.state,
    )


def _model(job: JobReport, spec: dict[str, Any]) -> str | None:
    if "model" not in spec:
        return job.job.partition("/")[0] or None
    model = spec["model"]
    return ", ".join(f"{k}={v}" for k, v in sorted(model.items())) if isinstance(model, dict) else str(model)


def _tts_cut_by(job: JobReport) -> int | None:
    """The attempt whose failure ended TTS before any productive instant."""
    first = next((segment.start_ns for segment in job.segments if segment.l1 is L1.PRODUCTIVE), job.wall_ns)
    cut = [failure for failure in job.failures if failure.start_ns < first]
    return cut[0].attempt if cut else None


def differences(baseline: Conditions, optimized: Conditions) -> list[str]:
    """Why the two are no pair; empty if they are one."""
    found = []
    if baseline.model != optimized.model:
        found.append(f"model {baseline.model} and {optimized.model}")
    if baseline.ranks != optimized.ranks:
        found.append(f"ranks {_listed(baseline.ranks)} and {_listed(optimized.ranks)}")
    if not _same_interval(baseline, optimized):
        one, two = (_interval(conditions) for conditions in (baseline, optimized))
        found.append(f"checkpoint interval {one} and {two}")
    if baseline.nof != optimized.nof:
        found.append(f"NoF {baseline.nof} and {optimized.nof}")
    for name, conditions in (("baseline", baseline), ("optimized", optimized)):
        if conditions.tts_cut_by is not None:
            found.append(f"TTS of the {name} run was cut by the failure of attempt {conditions.tts_cut_by}")
        if conditions.state is not JobState.COMPLETED:
            found.append(f"the {name} run is {conditions.state.value}, not completed")
    return found


def _same_interval(one: Conditions, two: Conditions) -> bool:
    a, b = one.checkpoint_interval_s, two.checkpoint_interval_s
    if a is None or b is None:
        return a is b
    return a == b if one.interval_is_set and two.interval_is_set else abs(a - b) <= INTERVAL_TOLERANCE * max(a, b)


def _interval(conditions: Conditions) -> str:
    value = conditions.checkpoint_interval_s
    return "unknown" if value is None else f"{value:g} s"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "unknown"


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Of one component or class: seconds saved, and points of ETT gained (negative = it got worse)."""

    seconds: float
    points: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One pair, compared. Savings are baseline - optimized.

    points_* of the components other than effective training sum to the gain in ETT, exactly.
    restart_multiplier  drop in mean TTR / drop in TTS; None when TTS did not drop or nothing failed
    cascade_bound_s     A_TTS <= (1 + NoF) * dTTS (Eq. 3); None when TTS did not drop
    inherited_s         part of the recovery saving that the TTS work explains: min(NoF * dTTS, recovery drop)
    """

    nof: int
    ett: tuple[float, float]
    wall_s: float
    classes: dict[L1, Saving]
    components: dict[Component, Saving]
    checkpoint_blocking_s: float
    tts_s: float
    mean_ttr_s: float | None
    recovery_s: float
    restart_multiplier: float | None
    cascade_bound_s: float | None
    inherited_s: float | None

    @property
    def gain_points(self) -> float:
        return 100 * (self.ett[1] - self.ett[0])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One or more pairs and, over them, means with 95% intervals (paired Student's t)."""

    pairs: tuple[Pair, ...]
    gain_points: Estimate
    wall_s: Estimate
    classes: dict[L1, Estimate]
    components: dict[Component, Estimate]
    component_points: dict[Component, Estimate]
    restart_multiplier: Estimate | None


def compare(baselines: Sequence[ReportDocument], optimized: Sequence[ReportDocument]) -> Comparison:
    """Compare runs pair by pair, in the order given; more than one pair gives intervals.

    Raises ComparisonRefusedError naming what differs: within a pair, between the repeats, or in the number of runs.
    """
    if len(baselines) != len(optimized) or not baselines:
        raise ComparisonRefusedError(
            [f"{len(baselines)} baseline and {len(optimized)} optimized runs: each needs its counterpart"]
        )
    every = [conditions_of(document) for document in (*baselines, *optimized)]
    for index, pair in enumerate(zip(every, every[len(baselines) :], strict=False), start=1):
        found = differences(*pair)
        if found:
            where = f"pair {index}: " if len(baselines) > 1 else ""
            raise ComparisonRefusedError([where + line for line in found])
    first = every[0]
    for index, conditions in enumerate(every[1 : len(baselines)], start=2):
        found = differences(first, conditions)
        if found:
            raise ComparisonRefusedError([f"repeats 1 and {index}: {line}" for line in found])
    return _summarized([_pair(a.job, b.job) for a, b in zip(baselines, optimized, strict=True)])


def _pair(baseline: JobReport, optimized: JobReport) -> Pair:
    if baseline.ett is None or optimized.ett is None:
        raise ComparisonRefusedError(["a run without wall time has no ETT to compare"])
    classes = {part: _saving(baseline.l1[part], baseline, optimized.l1[part], optimized) for part in L1}
    components = {part: _saving(baseline.l2[part], baseline, optimized.l2[part], optimized) for part in Component}
    tts, recovery = classes[L1.TTS].seconds, classes[L1.RECOVERY].seconds
    before, after = baseline.mean_ttr_ns, optimized.mean_ttr_ns
    ttr = None if before is None or after is None else float(before - after) / 1e9
    dropped = tts > 0
    return Pair(
        nof=baseline.nof,
        ett=(baseline.ett, optimized.ett),
        wall_s=(baseline.wall_ns - optimized.wall_ns) / 1e9,
        classes=classes,
        components=components,
        checkpoint_blocking_s=_exposed_drop(baseline, optimized, Phase.CHECKPOINT_BLOCKING),
        tts_s=tts,
        mean_ttr_s=ttr,
        recovery_s=recovery,
        restart_multiplier=ttr / tts if dropped and ttr is not None else None,
        cascade_bound_s=(1 + baseline.nof) * tts if dropped else None,
        inherited_s=max(0.0, min(baseline.nof * tts, recovery)) if dropped else None,
    )


def _saving(before_ns: int, baseline: JobReport, after_ns: int, optimized: JobReport) -> Saving:
    points = 100 * (before_ns / baseline.wall_ns - after_ns / optimized.wall_ns)
    return Saving(seconds=(before_ns - after_ns) / 1e9, points=points)


def _exposed_drop(baseline: JobReport, optimized: JobReport, phase: Phase) -> float:
    return (baseline.exposed(phase) - optimized.exposed(phase)) / 1e9


def _summarized(pairs: Sequence[Pair]) -> Comparison:
    multipliers = [pair.restart_multiplier for pair in pairs if pair.restart_multiplier is not None]
    return Comparison(
        pairs=tuple(pairs),
        gain_points=mean_of([pair.gain_points for pair in pairs]),
        wall_s=mean_of([pair.wall_s for pair in pairs]),
        classes={part: mean_of([pair.classes[part].seconds for pair in pairs]) for part in L1},
        components={part: mean_of([pair.components[part].seconds for pair in pairs]) for part in Component},
        component_points={part: mean_of([pair.components[part].points for pair in pairs]) for part in Component},
        restart_multiplier=mean_of(multipliers) if len(multipliers) == len(pairs) else None,
    )
