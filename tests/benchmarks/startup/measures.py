"""What one attempt's event log says of its startup, in seconds, by the metric's own reduction."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from ett_reports.events import L1, Phase, Source
from ett_reports.levels import reduce
from ett_reports.log import EventLog, ProcessLog
from ett_reports.report import AttemptReport, JobReport

WARM_UP_STEPS = 20
COMPILING = (Phase.COMPILE, Phase.RECOMPILE)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Of one attempt; None where it did not get so far.

    tts_s                    from its submission to the end of its first step, on the slowest rank
    ranks_s                  the same from the launch of its ranks
    sharding_s               the `train_module` stage: model, plan, sharding, DDP
    compile_busy_s           compile and recompile spans, on the rank where they are longest
    compile_exposed_s        what of them nothing else hides
    first_step_s, step_s     the first step, and the median of those after the 20th
    recompilations           in the loop
    start                    `warm` or `cold`, as the launcher says
    loss                     progressive normalized entropy at the end: equal arms learn the same
    phases                   exposed seconds before the first step, by phase
    """

    tts_s: float | None = None
    ranks_s: float | None = None
    sharding_s: float | None = None
    compile_busy_s: float | None = None
    compile_exposed_s: float | None = None
    first_step_s: float | None = None
    step_s: float | None = None
    recompilations: int = 0
    archive_hit: bool | None = None
    plan: str | None = None
    start: str | None = None
    loss: float | None = None
    phases: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Measures:
        """What an earlier release wrote and this one does not know is left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{"phases": {}, **{name: value for name, value in data.items() if name in known}})


def measures_of(log: EventLog, *, attempt: int) -> Measures:
    """The measures of one attempt.

    Raises:
        ValueError: the log has no such attempt.
    """
    report = reduce(log)
    own = next((one for one in report.attempts if one.number == attempt), None)
    if own is None:
        raise ValueError(f"{log.job}: no attempt {attempt} in its log, only {[one.number for one in report.attempts]}")
    ranks = [
        process
        for process in log.processes
        if process.identity.source is Source.TRAINER and process.identity.attempt == attempt
    ]
    # The rank that comes last takes no longer than its step; the others wait for it in theirs.
    first = min((found for rank in ranks if (found := first_step_ns(rank)) is not None), default=None)
    busy = [_busy_s(rank, *COMPILING) for rank in ranks]
    return Measures(
        tts_s=_until_first_step(own.submitted_ns, own, first),
        ranks_s=_until_first_step(own.launched_ns, own, first),
        sharding_s=max((_busy_s(rank, Phase.TRAIN_MODULE) for rank in ranks), default=None),
        compile_busy_s=max(busy, default=None),
        compile_exposed_s=_exposed_s(report, own, *COMPILING),
        first_step_s=None if first is None else first / 1e9,
        step_s=_steady_step_s(ranks),
        recompilations=max((_count(rank, Phase.RECOMPILE) for rank in ranks), default=0),
        archive_hit=_told(ranks, "compile_cache", "hit"),
        plan=_noted(ranks, Phase.TRAIN_MODULE, "plan"),
        start=_started(log, attempt),
        loss=_loss(report, attempt),
        phases=_phases_before_first_step(report, own),
    )


def _until_first_step(since: int | None, own: AttemptReport, first: int | None) -> float | None:
    if since is None or own.first_step_ns is None or first is None:
        return None
    return (own.first_step_ns + first - since) / 1e9


def first_step_ns(rank: ProcessLog) -> int | None:
    """How long the first step took; None before its end."""
    window = min((one for one in rank.windows if one.end_ns), key=lambda one: one.start_ns, default=None)
    return None if window is None else window.end_ns[0] - window.start_ns


def _steady_step_s(ranks: list[ProcessLog]) -> float | None:
    steady = [step for rank in ranks for step in _steps_ns(rank)[WARM_UP_STEPS:]]
    return statistics.median(steady) / 1e9 if steady else None


def _steps_ns(rank: ProcessLog) -> list[int]:
    windows = sorted(rank.windows, key=lambda window: window.start_ns)
    return [end - start for one in windows for start, end in pairwise((one.start_ns, *one.end_ns))]


def _busy_s(rank: ProcessLog, *phases: Phase) -> float:
    """Stages of one kind do not overlap on a rank, but for a compilation inside the stage of that name."""
    spans = sorted(
        (span.start_ns, span.end_ns) for span in rank.spans if span.phase in phases and span.end_ns is not None
    )
    total, reached = 0, 0
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def _count(rank: ProcessLog, phase: Phase) -> int:
    return sum(span.phase is phase for span in rank.spans)


def _exposed_s(report: JobReport, own: AttemptReport, *phases: Phase) -> float:
    return sum(one.duration_ns for one in report.segments if one.attempt == own.number and one.phase in phases) / 1e9


def _phases_before_first_step(report: JobReport, own: AttemptReport) -> dict[str, float]:
    """Startup of a first attempt counts as TTS, of a later one as recovery; scheduling is a part of both."""
    seconds: dict[str, float] = {}
    for one in report.segments:
        starting = one.l1 in (L1.TTS, L1.RECOVERY) and one.attempt == own.number
        if starting and (own.first_step_ns is None or one.start_ns < own.first_step_ns):
            seconds[one.phase.value] = seconds.get(one.phase.value, 0.0) + one.duration_ns / 1e9
    return {phase: round(value, 4) for phase, value in seconds.items()}


def _told(ranks: list[ProcessLog], point: str, attribute: str) -> Any:
    told = [one.attrs.get(attribute) for rank in ranks for one in rank.points if one.name == point]
    return next(iter(told), None)


def _noted(ranks: list[ProcessLog], phase: Phase, attribute: str) -> Any:
    """What the spans of a phase say, in whichever of them."""
    spans = [span for rank in ranks for span in rank.spans if span.phase is phase]
    return next((span.attrs[attribute] for span in spans if attribute in span.attrs), None)


def _started(log: EventLog, attempt: int) -> str | None:
    told = [
        point.attrs.get("start")
        for process in log.processes
        for point in process.points
        if point.name == "launched" and point.attrs.get("attempt") == attempt
    ]
    return told[-1] if told else None


def _loss(report: JobReport, attempt: int) -> float | None:
    told = [one for one in report.metrics if one.scope == "progressive" and one.attempt == attempt]
    return told[-1].values.get("ne") if told else None
