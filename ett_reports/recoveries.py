"""Recoveries: one per failed attempt, from its last sign of progress to the next productive instant (section 3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ett_reports.attempt_time import Attempt
from ett_reports.events import Phase, Point
from ett_reports.facts import whole
from ett_reports.intervals import Coverage
from ett_reports.report import JobState
from ett_reports.timeline import Timeline

_ENDS_RECOVERY = frozenset({Phase.FINAL_CHECKPOINT, Phase.IN_TRAINER_PUBLISH})


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """start <= failure <= detected <= end, unix ns; its three parts are the stretches between them."""

    attempt: Attempt
    start: int
    failure: int
    detected: int
    end: int
    recovered: bool
    replayed_samples: int
    lost_not_replayed_samples: int
    lost_range: tuple[int, int] | None


def find_recoveries(timeline: Timeline, productive: Coverage) -> list[Recovery]:
    """One recovery per attempt that ended without completing the job, in order of their starts; none overlap."""
    failed = [attempt for attempt in timeline.attempts if attempt.verdict.outcome is JobState.FAILED]
    ordered = sorted((_start(attempt, timeline), attempt.number, attempt) for attempt in failed)
    recoveries = []
    for index, (start, _, attempt) in enumerate(ordered):
        following = ordered[index + 1][0] if index + 1 < len(ordered) else timeline.end
        resumed = productive.next_from(start)
        closing = _nothing_left(timeline, attempt, start) if productive.total else None
        end = min(instant for instant in (resumed, closing, following, timeline.end) if instant is not None)
        recoveries.append(_recovery(timeline, attempt, start, end, resumed is not None or closing is not None))
    return recoveries


def _start(attempt: Attempt, timeline: Timeline) -> int:
    verdict = attempt.verdict
    start = verdict.failure if verdict.progress is None else verdict.progress
    assert start is not None
    return min(max(start, timeline.start), timeline.end)


def _nothing_left(timeline: Timeline, failed: Attempt, start: int) -> int | None:
    """The first shutdown phase of a later attempt that had nothing left to train."""
    instants = []
    for attempt in timeline.attempts:
        if attempt.number <= failed.number or not _has_nothing_to_train(attempt, timeline):
            continue
        completed = attempt.verdict.outcome is JobState.COMPLETED
        phases = _ENDS_RECOVERY | {Phase.TEARDOWN} if completed else _ENDS_RECOVERY
        spans = (span for trainer in attempt.placed.trainers for span in trainer.spans)
        instants += [span.start_ns for span in spans if span.phase in phases and span.start_ns >= start]
    return min(instants, default=None)


def _has_nothing_to_train(attempt: Attempt, timeline: Timeline) -> bool:
    if timeline.planned_samples is not None:
        return attempt.consumed
    # Without a planned stream the attempt itself tells: it stepped not once, and went on to close the job.
    return attempt.loop is None


def _recovery(timeline: Timeline, attempt: Attempt, start: int, end: int, recovered: bool) -> Recovery:
    verdict = attempt.verdict
    assert verdict.failure is not None and verdict.detected is not None
    failure = min(max(verdict.failure, start), end)
    lost = _lost_range(timeline, attempt, recovered)
    return Recovery(
        attempt=attempt,
        start=start,
        failure=failure,
        detected=min(max(verdict.detected, failure), end),
        end=end,
        recovered=recovered,
        replayed_samples=_replayed(timeline, start, end),
        lost_not_replayed_samples=lost[1] - lost[0] if lost is not None else 0,
        lost_range=lost,
    )


def _replayed(timeline: Timeline, start: int, end: int) -> int:
    """Samples that were read again by steps that began within the recovery."""
    total = 0
    for attempt in timeline.attempts:
        if attempt.loop is None:
            continue
        steps = attempt.loop.steps
        index = bisect_right(steps.start, start - 1)
        while index < len(steps) and steps.start[index] < end:
            replayed = attempt.loop.replayed[index]
            total += steps.after[index] - steps.before[index] if replayed < 0 else replayed
            index += 1
    return total


def _lost_range(timeline: Timeline, failed: Attempt, recovered: bool) -> tuple[int, int] | None:
    """Cursors whose training is in no model: skipped by the next attempt, or abandoned with the job."""
    if recovered:
        successor = next((a for a in timeline.attempts if a.number > failed.number and a.loop is not None), None)
        if successor is None or successor.loop is None:
            return None
        restored = _restored_cursor(successor, successor.loop.join)
        resumed = successor.loop.steps.before[0]
        return (restored, resumed) if restored is not None and restored < resumed else None
    durable = _durable_cursor(timeline.attempts)
    mark = timeline.high_water_mark
    return (durable, mark) if durable is not None and mark is not None and durable < mark else None


def _restored_cursor(attempt: Attempt, before: int) -> int | None:
    """What the model was restored to, when the restored point tells a cursor."""
    told = [(s.ns, whole(s.fact.attrs.get("cursor"))) for s in attempt.placed.stamps.get(Point.RESTORED, [])]
    return max(((ns, cursor) for ns, cursor in told if cursor is not None and ns <= before), default=(0, None))[1]


def _durable_cursor(attempts: Sequence[Attempt]) -> int | None:
    """The cursor of the last checkpoint that became durable; None if the log tells of no checkpoints at all."""
    cursors, any_checkpoint = [], False
    for attempt in attempts:
        stamps = attempt.placed.stamps
        dispatched = {s.fact.attrs.get("step"): s.ns for s in stamps.get(Point.CHECKPOINT_DISPATCHED, [])
                      if type(s.fact.attrs.get("step")) is int}  # fmt: skip
        any_checkpoint = any_checkpoint or bool(dispatched)
        if attempt.loop is None:
            continue
        for stamp in stamps.get(Point.CHECKPOINT_DURABLE, []):
            step = stamp.fact.attrs.get("step")
            at = dispatched.get(step) if type(step) is int else None
            index = bisect_right(attempt.loop.steps.end, stamp.ns if at is None else at)
            if index:
                cursors.append(attempt.loop.steps.after[index - 1])
    return max(cursors, default=0) if any_checkpoint or cursors else None
