"""What-if (section 10): ETT% with a phase shortened, a failure removed, or another checkpoint interval."""

from __future__ import annotations

from dataclasses import dataclass

from ett_reports.events import Phase
from ett_reports.interval import IntervalError, behaviour_of, waste
from ett_reports.levels import report_of
from ett_reports.log import EventLog
from ett_reports.report import JobReport
from ett_reports.schedule import Region, shortened, shutdown_of, startup_of
from ett_reports.timeline import Timeline, build_timeline


class WhatIfError(ValueError):
    """A change that cannot be computed for this run; the message says why and what can."""


@dataclass(frozen=True, kw_only=True)
class AttemptChange:
    """Seconds saved in one attempt (None: between attempts), and how much more of other phases came into view."""

    attempt: int | None
    saved_s: float
    newly_exposed_s: dict[Phase, float]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The job as it was and as it would have been. saved_s < 0: it would have taken longer.

    upper_bound_s  (1 + NoF) times the largest change in one attempt (Eq. 3); None where no phase was shortened
    """

    change: str
    ett: float
    new_ett: float
    wall_s: float
    new_wall_s: float
    saved_s: float
    upper_bound_s: float | None
    attempts: tuple[AttemptChange, ...]

    @property
    def points(self) -> float:
        return 100 * (self.new_ett - self.ett)


def shorten(log: EventLog, phase: Phase, factor: float, *, now_ns: int | None = None) -> WhatIf:
    """Every span of `phase` at `factor` (0 = gone, 0.5 = half) of its length, in every attempt that ran it.

    In startup and shutdown the branches are laid out again, so that a shortened one exposes its neighbours; the loop
    and the scheduler's phases are serial, and lose what they exposed.

    Raises WhatIfError for a phase that is no overhead or that did not run, and for a factor that is no length.
    """
    if phase in (Phase.STEP, Phase.UNATTRIBUTED):
        raise WhatIfError(f"{phase.value} is not an overhead that could be shortened: choose another phase")
    if not 0 <= factor < float("inf"):
        raise WhatIfError(f"factor {factor}: expected 0 or more, for example 0.5 for half the time")
    timeline = build_timeline(log, now_ns)
    job = report_of(timeline, log)
    if not job.busy(phase) and not job.exposed(phase):
        ran = ", ".join(total.phase.value for total in job.phases if total.busy_ns or total.exposed_ns)
        raise WhatIfError(f"{phase.value} did not run in {job.job}; what ran: {ran}")
    changes = _changes(timeline, job, phase, factor)
    saved = sum(change.saved_s for change in changes)
    largest = max((change.saved_s for change in changes), key=abs, default=0.0)
    return _result(job, f"{phase.value} at {factor:g} of its time", saved, changes, (1 + job.nof) * largest)


def without_failure(job: JobReport, attempt: int) -> WhatIf:
    """The failure of one attempt, and so its recovery, had not been.

    Raises WhatIfError when that attempt did not fail, or nothing recovered from it.
    """
    failure = next((failure for failure in job.failures if failure.attempt == attempt), None)
    if failure is None:
        failed = ", ".join(str(failure.attempt) for failure in job.failures) or "none"
        raise WhatIfError(f"attempt {attempt} did not fail; failed attempts: {failed}")
    if not failure.recovered:
        raise WhatIfError(
            f"nothing recovered from the failure of attempt {attempt}: how the job would have gone on is not known"
        )
    saved = failure.recovery_ns / 1e9
    change = AttemptChange(attempt=attempt, saved_s=saved, newly_exposed_s={})
    return _result(job, f"no failure of attempt {attempt} ({failure.cause.value})", saved, (change,), None)


def with_interval(job: JobReport, interval_s: float) -> WhatIf:
    """Checkpoints at another interval: Eq. 2 with this job's own CSBT, F, T and D, new less present.

    Raises WhatIfError when the job does not show its present interval or what a save costs.
    """
    present = job.checkpoints.interval_ns
    if present is None:
        raise WhatIfError(
            f"{job.job} saved fewer than two checkpoints in one attempt: its present interval is not known"
        )
    try:
        behaviour = behaviour_of(job)
        saved = waste(behaviour, present / 1e9).total_s - waste(behaviour, interval_s).total_s
    except IntervalError as error:
        raise WhatIfError(str(error)) from None
    return _result(job, f"a checkpoint every {interval_s:g} s, not {present / 1e9:g} s", saved, (), None)


def _changes(timeline: Timeline, job: JobReport, phase: Phase, factor: float) -> tuple[AttemptChange, ...]:
    found = []
    for attempt in timeline.attempts:
        regions = [region for region in (startup_of(attempt), shutdown_of(attempt)) if region and region.has(phase)]
        again = [shortened(region, phase, factor) for region in regions]
        saved = sum(old.join - new.join for old, new in zip(regions, again, strict=True))
        saved += round(_serial_ns(job, timeline, attempt.number, phase, regions) * (1 - factor))
        if regions or saved:
            exposed = _newly_exposed(regions, again, phase)
            found.append(AttemptChange(attempt=attempt.number, saved_s=saved / 1e9, newly_exposed_s=exposed))
    between = sum(s.duration_ns for s in job.segments if s.attempt is None and s.phase is phase)
    if between:
        found.append(AttemptChange(attempt=None, saved_s=between * (1 - factor) / 1e9, newly_exposed_s={}))
    return tuple(found)


def _serial_ns(job: JobReport, timeline: Timeline, attempt: int, phase: Phase, regions: list[Region]) -> int:
    """What the phase exposed outside the regions that are laid out again."""
    total = 0
    for segment in job.segments:
        if segment.attempt == attempt and segment.phase is phase:
            middle = timeline.start + (segment.start_ns + segment.end_ns) // 2
            if not any(region.start <= middle < region.join for region in regions):
                total += segment.duration_ns
    return total


def _newly_exposed(before: list[Region], after: list[Region], phase: Phase) -> dict[Phase, float]:
    change: dict[Phase, int] = {}
    for sign, regions in ((-1, before), (1, after)):
        for region in regions:
            for leaf, exposed in region.exposed().items():
                change[leaf] = change.get(leaf, 0) + sign * exposed
    return {leaf: value / 1e9 for leaf, value in change.items() if value > 0 and leaf is not phase}


def _result(
    job: JobReport, change: str, saved_s: float, attempts: tuple[AttemptChange, ...], bound: float | None
) -> WhatIf:
    wall = job.wall_ns / 1e9
    new_wall = max(job.productive_ns / 1e9, wall - saved_s)
    if not wall or not new_wall:
        raise WhatIfError(f"{job.job} has no wall time: there is no ETT to recompute")
    return WhatIf(
        change=change,
        ett=job.productive_ns / job.wall_ns,
        new_ett=job.productive_ns / 1e9 / new_wall,
        wall_s=wall,
        new_wall_s=new_wall,
        saved_s=wall - new_wall,
        upper_bound_s=bound,
        attempts=attempts,
    )
