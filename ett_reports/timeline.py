"""The timeline: all attempts of a job as one gap-free sequence of pieces on the reference clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ett_reports.attempt_time import Attempt, AttemptTime, attempt_time
from ett_reports.events import Phase, Provenance
from ett_reports.intervals import Piece, append, moved, worse
from ett_reports.log import EventLog
from ett_reports.loop_time import Loop, mark_replay, open_loop
from ett_reports.placement import Placement, place
from ett_reports.report import JobState
from ett_reports.verdict import SILENCE_NS, bounds_of, judge, planned_samples


class TimelineError(Exception):
    """The log has events but no attempt; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """pieces cover [start, end) without a gap or an overlap; instants are unix ns on the reference clock."""

    job: str
    placement: Placement
    attempts: tuple[Attempt, ...]
    times: tuple[AttemptTime, ...]
    pieces: tuple[Piece, ...]
    start: int
    end: int
    planned_samples: int | None
    high_water_mark: int | None
    state: JobState
    concurrent_steps: int

    @property
    def consumed(self) -> bool:
        planned, mark = self.planned_samples, self.high_water_mark
        return planned is not None and mark is not None and mark >= planned


def build_timeline(log: EventLog, now_ns: int | None = None, *, silence_ns: int = SILENCE_NS) -> Timeline:
    """Pure: the same log and instant give the same timeline. now_ns (unix) matters for a live job only.

    Raises TimelineError when no attempt is in the log.
    """
    placement = place(log)
    if not placement.attempts:
        raise TimelineError(
            f"{log.job}: no attempt in this log: neither a trainer's events nor a launcher's 'submitted' point"
        )
    planned = planned_samples(placement.attempts)
    attempts, mark = _judge_all(placement, now_ns, silence_ns, planned)
    times = [attempt_time(attempt) for attempt in attempts]
    start = min(attempt.bounds.start for attempt in attempts)
    end = max(attempt.bounds.end for attempt in attempts)
    pieces, concurrent = _overlay(attempts, times)
    live = attempts[-1].bounds.open
    return Timeline(
        job=log.job,
        placement=placement,
        attempts=tuple(attempts),
        times=tuple(times),
        pieces=tuple(_reaching(pieces, start, end)),
        start=start,
        end=end,
        planned_samples=planned,
        high_water_mark=mark,
        state=JobState.LIVE if live else attempts[-1].verdict.outcome,
        concurrent_steps=concurrent,
    )


def _judge_all(
    placement: Placement, now_ns: int | None, silence_ns: int, planned: int | None
) -> tuple[list[Attempt], int | None]:
    placed = placement.attempts
    life = max(
        [trainer.last_life_ns for attempt in placed for trainer in attempt.trainers]
        + [stamp.ns for attempt in placed for stamps in attempt.stamps.values() for stamp in stamps],
        default=0,
    )
    now = life if now_ns is None else max(now_ns, life)
    last = len(placed) - 1
    bounds = [
        bounds_of(attempt, superseded=index < last, now=now, silent=now - life > silence_ns)
        for index, attempt in enumerate(placed)
    ]
    loops = [open_loop(attempt.trainers, bound.end) for attempt, bound in zip(placed, bounds, strict=True)]
    mark = mark_replay([loop for loop in loops if loop is not None])
    attempts = []
    for index, attempt in enumerate(placed):
        loop = loops[index]
        unfinished = planned is not None and (mark or 0) < planned
        verdict = judge(attempt, bounds[index], loop, superseded=index < last, unfinished=unfinished)
        consumed = planned is not None and _cursor_reached(loops[: index + 1]) >= planned
        attempts.append(Attempt(placed=attempt, bounds=bounds[index], verdict=verdict, loop=loop, consumed=consumed))
    return attempts, mark


def _cursor_reached(loops: Sequence[Loop | None]) -> int:
    return max((max(loop.steps.after) for loop in loops if loop is not None), default=-1)


def _overlay(attempts: Sequence[Attempt], times: Sequence[AttemptTime]) -> tuple[list[Piece], int]:
    """Lay later attempts over earlier ones: a productive step keeps its instant, else the later attempt has it."""
    merged: list[Piece] = []
    concurrent = 0
    for attempt, own in zip(attempts, times, strict=True):
        if not own.pieces:
            continue
        start, end = own.pieces[0].start, own.pieces[-1].end
        low = bisect_right(merged, start, key=lambda piece: piece.end)
        high = bisect_left(merged, end, key=lambda piece: piece.start)
        if merged and start > merged[-1].end:
            merged.append(_between(merged[-1], own.pieces[0], attempt))
            low = high = len(merged)
        elif merged and end < merged[0].start:
            merged.insert(0, _between(own.pieces[-1], merged[0], attempt))
            low = high = 0
        below = merged[low:high]
        fresh, both = _lay(below, own.pieces)
        concurrent += both
        merged[low:high] = fresh
    return merged, concurrent


def _reaching(pieces: list[Piece], start: int, end: int) -> list[Piece]:
    """Attempts of no length (submitted and gone in one instant) still bound the job's wall time."""
    first, last = (pieces[0].start, pieces[-1].end) if pieces else (end, end)
    before = Piece(start, first, Phase.RETRY_WAIT, provenance=Provenance.INFERRED)
    after = Piece(last, end, Phase.RETRY_WAIT, provenance=Provenance.INFERRED)
    return [piece for piece in (before, *pieces, after) if piece.start < piece.end]


def _between(before: Piece, after: Piece, attempt: Attempt) -> Piece:
    """From the release of one attempt to the submission of the next: somebody decides whether to try again."""
    provenance = worse(before.provenance, attempt.bounds.start_provenance)
    return Piece(before.end, after.start, Phase.RETRY_WAIT, provenance=provenance)


def _lay(below: Sequence[Piece], above: Sequence[Piece]) -> tuple[list[Piece], int]:
    """Two gap-free sequences that may overlap -> one, and in how many stretches both stepped productively."""
    laid: list[Piece] = []
    both = 0
    bounds = sorted({instant for piece in (*below, *above) for instant in (piece.start, piece.end)})
    one = two = 0
    for index in range(len(bounds) - 1):
        start, end = bounds[index], bounds[index + 1]
        while one < len(below) and below[one].end <= start:
            one += 1
        while two < len(above) and above[two].end <= start:
            two += 1
        lower = below[one] if one < len(below) and below[one].start <= start else None
        upper = above[two] if two < len(above) and above[two].start <= start else None
        if lower is not None and upper is not None:
            lower_steps, upper_steps = lower.phase is Phase.STEP, upper.phase is Phase.STEP
            both += lower_steps and upper_steps
            chosen = lower if lower_steps and not upper_steps else upper
        else:
            chosen = upper or lower or Piece(start, end, Phase.RETRY_WAIT, provenance=Provenance.INFERRED)
        append(laid, moved(chosen, start, end))
    return laid, both
