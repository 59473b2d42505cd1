"""How an attempt ended: its bounds, whether it completed, and when it failed, was detected and why (section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett_reports.events import PRECEDENCE, PROGRESS_PHASES, SHUTDOWN_PHASES, Cause, Phase, Point, Provenance
from ett_reports.facts import whole
from ett_reports.intervals import worse
from ett_reports.loop_time import Loop
from ett_reports.placement import PlacedAttempt, PlacedSpan, Stamp, Trainer
from ett_reports.report import JobState

SILENCE_NS = 600_000_000_000
"""A trainer that gave no sign of life for so long, with nobody saying that it was released, is dead."""

PREEMPTION_EXIT, DATA_EXIT = 75, 65


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """An attempt's stretch of time. None = no source told."""

    start: int
    end: int
    start_provenance: Provenance
    end_provenance: Provenance
    submitted: Stamp | None
    allocated: Stamp | None
    launched: Stamp | None
    released: Stamp | None
    open: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """progress <= failure <= detected for a failed attempt; None otherwise. progress: last sign of it, if any."""

    outcome: JobState
    progress: int | None
    cause: Cause | None = None
    message: str = ""
    failure: int | None = None
    detected: int | None = None
    provenance: Provenance = Provenance.MEASURED


def bounds_of(placed: PlacedAttempt, *, superseded: bool, now: int, silent: bool) -> Bounds:
    """now: the instant of the report; silent: no process of the job gave a sign of life for SILENCE_NS before it."""
    submitted, allocated, launched = (placed.stamp(name) for name in (Point.SUBMITTED, Point.ALLOCATED, Point.LAUNCHED))
    released = placed.last_stamp(Point.RELEASED)
    first = submitted or allocated or launched
    start, start_provenance = (first.ns, first.provenance) if first else (_earliest(placed), Provenance.INFERRED)
    life = max([start, *_lives(placed)])
    alive = not superseded and released is None and not _all_said_goodbye(placed) and not (silent and placed.trainers)
    if released is not None:
        # A scheduler's coarse clock may put the release a moment before the last words.
        late = min(life, released.ns + released.fact.resolution_ns)
        end = max(released.ns, late)
        end_provenance = released.provenance if late <= released.ns else Provenance.ESTIMATED
    elif alive:
        end, end_provenance = max(now, life), Provenance.MEASURED
    else:
        end, end_provenance = life, Provenance.MEASURED if _all_said_goodbye(placed) else Provenance.INFERRED
    return Bounds(
        start=start,
        end=max(end, start),
        start_provenance=start_provenance,
        end_provenance=end_provenance,
        submitted=submitted,
        allocated=allocated,
        launched=launched,
        released=released,
        open=alive,
    )


def _earliest(placed: PlacedAttempt) -> int:
    known = [trainer.start_ns for trainer in placed.trainers]
    known += [stamp.ns for stamps in placed.stamps.values() for stamp in stamps]
    return min(known, default=0)


def _lives(placed: PlacedAttempt) -> list[int]:
    lives = [trainer.last_life_ns for trainer in placed.trainers]
    return lives + [stamp.ns for stamps in placed.stamps.values() for stamp in stamps]


def _all_said_goodbye(placed: PlacedAttempt) -> bool:
    """Trainers that closed their logs, with no launcher to tell of a release."""
    launched = any(name in placed.stamps for name in (Point.SUBMITTED, Point.ALLOCATED, Point.LAUNCHED))
    return bool(placed.trainers) and all(trainer.ended for trainer in placed.trainers) and not launched


def judge(placed: PlacedAttempt, bounds: Bounds, loop: Loop | None, *, superseded: bool, unfinished: bool) -> Verdict:
    """unfinished: the planned stream is known not to be consumed."""
    reports = _reports(placed)
    outcome = _outcome(placed, bounds, superseded, bool(reports), unfinished)
    if outcome is not JobState.FAILED:
        return Verdict(outcome=outcome, progress=_progress(placed, bounds, loop, bounds.end))
    cause, message = _cause(reports, bounds)
    stamp = _failure_stamp(reports)
    told = bounds.end if stamp is None else min(stamp.ns, bounds.end)
    detection = min((s.ns for s in placed.stamps.get(Point.DETECTED, [])), default=None)
    progress = _progress(placed, bounds, loop, told)
    if cause is Cause.HANG:
        detection = told if detection is None else detection
        told = progress if progress is not None else _last_beat(placed, bounds, detection)
    failure = max(bounds.start, min(bounds.end, told if progress is None else max(told, progress)))
    noticed = bool(reports) and reports[0].fact.name == Point.PREEMPTION_NOTICE
    detected = failure if detection is None or noticed else min(max(detection, failure), bounds.end)
    provenance = stamp.provenance if stamp is not None else worse(Provenance.INFERRED, bounds.end_provenance)
    return Verdict(
        outcome=outcome,
        progress=progress,
        cause=cause,
        message=message,
        failure=failure,
        detected=detected,
        provenance=provenance,
    )


def _reports(placed: PlacedAttempt) -> list[Stamp]:
    """Everything that says why the attempt ended, earliest first."""
    names = (Point.FAILURE, Point.PREEMPTION_NOTICE, Point.DETECTED, Point.RELEASED)
    told = [stamp for name in names for stamp in placed.stamps.get(name, [])]
    bad = [s for s in told if s.fact.name != Point.RELEASED or s.fact.attrs.get("outcome") == "failed"]
    rank = {name: index for index, name in enumerate(names)}
    return sorted(bad, key=lambda s: (s.ns, PRECEDENCE.index(s.fact.source), rank[Point(s.fact.name)], s.fact.key))


def _outcome(placed: PlacedAttempt, bounds: Bounds, superseded: bool, reported: bool, unfinished: bool) -> JobState:
    said = bounds.released.fact.attrs.get("outcome") if bounds.released is not None else None
    if said == "failed":
        return JobState.FAILED
    if said == "completed" or Point.COMPLETED in placed.stamps:
        return JobState.COMPLETED
    if reported or superseded:
        return JobState.FAILED
    if bounds.open:
        return JobState.LIVE
    if bounds.released is not None:
        codes = exit_codes(placed)
        return JobState.COMPLETED if codes and not any(codes) else JobState.FAILED
    ended = bool(placed.trainers) and all(trainer.ended for trainer in placed.trainers)
    return JobState.COMPLETED if ended and not unfinished else JobState.FAILED


def exit_codes(placed: PlacedAttempt) -> tuple[int, ...]:
    """Exit codes that the release told; negative = killed by that signal."""
    released = placed.last_stamp(Point.RELEASED)
    codes = released.fact.attrs.get("exit_codes") if released is not None else None
    if isinstance(codes, dict):
        codes = list(codes.values())
    return tuple(code for code in codes if type(code) is int) if isinstance(codes, list) else ()


def _cause(reports: list[Stamp], bounds: Bounds) -> tuple[Cause, str]:
    """The earliest cause that anybody named, else what the exit code means."""
    message = next((str(s.fact.attrs["message"])[:500] for s in reports if s.fact.attrs.get("message")), "")
    for stamp in reports:
        if stamp.fact.name == Point.PREEMPTION_NOTICE:
            return Cause.PREEMPTION, message
        if stamp.fact.cause is not None:
            return stamp.fact.cause, message
        code = stamp.fact.attrs.get("exit_code")
        if type(code) is int:
            return cause_of_exit(code), message
    if reports:
        return Cause.APPLICATION, message
    return Cause.INFRASTRUCTURE, message or "ended without a word"


def cause_of_exit(code: int) -> Cause:
    """The taxonomy's exit codes; a signal's death is the machine's doing, anything else the program's."""
    if code == PREEMPTION_EXIT:
        return Cause.PREEMPTION
    if code == DATA_EXIT:
        return Cause.DATA
    return Cause.INFRASTRUCTURE if code < 0 or code > 128 else Cause.APPLICATION


def _failure_stamp(reports: list[Stamp]) -> Stamp | None:
    """The instant of failure: the earliest failure or notice, else the detection, else the release."""
    for names in ((Point.FAILURE, Point.PREEMPTION_NOTICE), (Point.DETECTED,), (Point.RELEASED,)):
        stamp = next((s for s in reports if s.fact.name in names), None)
        if stamp is not None:
            return stamp
    return None


def _progress(placed: PlacedAttempt, bounds: Bounds, loop: Loop | None, before: int) -> int | None:
    """Last sign of progress: the last completed step, or a phase of loop or shutdown that closed by then."""
    ends = [] if loop is None else [loop.end]
    phases = SHUTDOWN_PHASES - {Phase.TEARDOWN} if loop is None else PROGRESS_PHASES
    for trainer in placed.trainers:
        ends += [s.end_ns for s in trainer.spans if s.end_ns is not None and _counts(s, trainer, loop, phases, before)]
    latest = max(ends, default=None)
    return None if latest is None else max(bounds.start, min(latest, bounds.end))


def _counts(span: PlacedSpan, trainer: Trainer, loop: Loop | None, phases: frozenset[Phase], before: int) -> bool:
    if span.end_ns is None or span.failed or span.phase not in phases or span.end_ns > before:
        return False
    thread = trainer.steps.thread
    in_background = span.phase not in SHUTDOWN_PHASES and None not in (span.thread, thread) and span.thread != thread
    return not in_background and (loop is None or span.end_ns > loop.join)


def _last_beat(placed: PlacedAttempt, bounds: Bounds, detection: int) -> int:
    """A hang in startup fails at its last heartbeat or closed phase."""
    lives = [trainer.last_life_ns for trainer in placed.trainers]
    start = bounds.launched.ns if bounds.launched is not None else bounds.start
    return min(max([start, *lives]), detection)


def planned_samples(attempts: Sequence[PlacedAttempt]) -> int | None:
    """The stream that was fixed at first submission: the first telling counts."""
    told = [
        (stamp.ns, stamp.fact.key, planned)
        for attempt in attempts
        for stamp in attempt.stamps.get(Point.STREAM, [])
        if (planned := whole(stamp.fact.attrs.get("planned_samples"))) is not None
    ]
    return min(told)[2] if told else None
