"""What was taken out of each step: waits for data and blocking events, the most that any rank lost (section 6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ett_reports.events import BLOCKING_PHASES, DERIVED_PHASES, Phase, Provenance
from ett_reports.intervals import Piece, clip, gaps, innermost, moved
from ett_reports.placement import PlacedSpan, Steps, Trainer

_DATA = frozenset({Phase.DATA_STALL, Phase.FIRST_BATCH})


@dataclass(kw_only=True)
class StepLosses:
    """By the number of the lead's step. wait: only data was waited for, from its start; blocked: anything else."""

    wait: list[int]
    blocked: dict[int, list[Piece]] = field(default_factory=dict)

    def total(self, index: int) -> int:
        pieces = self.blocked.get(index)
        return self.wait[index] if pieces is None else sum(piece.length for piece in pieces)


def largest_losses(lead: Trainer, stepping: Sequence[Trainer], attempt_end: int) -> StepLosses:
    """Per step of the lead: what the rank lost that lost the most in it, since the others waited for that one."""
    most = [0] * len(lead.steps)
    losses = StepLosses(wait=[0] * len(lead.steps))
    for trainer in sorted(stepping, key=lambda t: (t is not lead, -1 if t.rank is None else t.rank, t.name)):
        own = _RankLosses(trainer, attempt_end)
        counterpart = _Counterparts(lead.steps, trainer.steps)
        for index, total in own.totals():
            target = counterpart.of(index)
            if target is None or total <= most[target]:
                continue
            most[target] = total
            losses.blocked.pop(target, None)
            losses.wait[target] = 0
            if index in own.blocked:
                losses.blocked[target] = _onto_lead(own, index, lead.steps, target)
            else:
                losses.wait[target] = min(total, lead.steps.end[target] - lead.steps.start[target])
    return losses


class _Counterparts:
    """Which step of the lead is step i of another rank: the one of the same number, if it reached the same cursor."""

    def __init__(self, lead: Steps, other: Steps) -> None:
        self.lead, self.other = lead, other
        self.by_cursor: dict[int, int] | None = None

    def of(self, index: int) -> int | None:
        cursor = self.other.after[index]
        if index < len(self.lead.after) and self.lead.after[index] == cursor:
            return index
        if self.by_cursor is None:
            self.by_cursor = {after: number for number, after in enumerate(self.lead.after)}
        return self.by_cursor.get(cursor)


class _RankLosses:
    """What one rank's steps lost: blocking events of the loop's thread, and the wait for data."""

    def __init__(self, trainer: Trainer, attempt_end: int) -> None:
        self.trainer = trainer
        self.steps = trainer.steps
        self.blocked: dict[int, list[Piece]] = {}
        for piece in blocking_spans(trainer, attempt_end):
            index = bisect_left(self.steps.end, piece.start + 1)
            while index < len(self.steps) and self.steps.start[index] < piece.end:
                inside = clip([piece], self.steps.start[index], self.steps.end[index])
                if inside:
                    self.blocked.setdefault(index, []).extend(inside)
                index += 1

    def totals(self) -> Iterator[tuple[int, int]]:
        """Steps that lost time, with how much."""
        for index, wait in enumerate(self.steps.wait):
            if index in self.blocked:
                yield index, sum(piece.length for piece in self.pieces(index))
            elif wait:
                yield index, wait

    def pieces(self, index: int) -> list[Piece]:
        """The step's data wait lies in its earliest free time; a recorded data span is the same wait told twice."""
        taken = self.blocked.get(index, [])
        left = self.steps.wait[index] - sum(piece.length for piece in taken if piece.phase in _DATA)
        added = []
        for low, high in gaps(taken, self.steps.start[index], self.steps.end[index]) if left > 0 else ():
            length = min(left, high - low)
            provenance = self.trainer.provenance
            added.append(Piece(low, low + length, Phase.DATA_STALL, rank=self.trainer.rank, provenance=provenance))
            left -= length
            if left <= 0:
                break
        return sorted(taken + added, key=lambda piece: piece.start)


def _onto_lead(own: _RankLosses, index: int, lead: Steps, target: int) -> list[Piece]:
    """Carry a rank's pieces over to the lead's step, by their distance from the step's start."""
    shift = lead.start[target] - own.steps.start[index]
    pieces = own.pieces(index)
    if shift:
        pieces = [moved(piece, piece.start + shift, piece.end + shift) for piece in pieces]
    return clip(pieces, lead.start[target], lead.end[target])


def blocking_spans(trainer: Trainer, attempt_end: int) -> list[Piece]:
    """Blocking events of the loop's thread, the innermost having the time. Other threads are background."""
    spans = (span for span in trainer.spans if span.phase in BLOCKING_PHASES)
    return innermost(_piece(span, attempt_end, trainer) for span in spans if on_loop_thread(span, trainer))


def loop_spans(trainer: Trainer, attempt_end: int) -> list[Piece]:
    """All spans of the loop's thread, innermost first: they explain time between two windows of steps."""
    spans = (span for span in trainer.spans if span.phase not in DERIVED_PHASES)
    return innermost(_piece(span, attempt_end, trainer) for span in spans if on_loop_thread(span, trainer))


def on_loop_thread(span: PlacedSpan, trainer: Trainer) -> bool:
    """Where a thread is not known, the span is taken to be the loop's."""
    return None in (span.thread, trainer.steps.thread) or span.thread == trainer.steps.thread


def _piece(span: PlacedSpan, attempt_end: int, trainer: Trainer) -> Piece:
    end = attempt_end if span.end_ns is None else span.end_ns
    provenance = Provenance.INFERRED if span.end_ns is None else trainer.provenance
    return Piece(span.start_ns, max(end, span.start_ns), span.phase, rank=trainer.rank, provenance=provenance)
