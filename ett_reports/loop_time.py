"""Time in the training loop: of each step what moved the job, what was replay, and what was taken out (section 2)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from ett_reports.events import Phase
from ett_reports.intervals import Piece, append, clip, gaps, moved, relabelled
from ett_reports.placement import Steps, Trainer
from ett_reports.step_losses import StepLosses, largest_losses

_IN_FIRST_STEP = {Phase.DATA_STALL: Phase.FIRST_BATCH, Phase.RECOMPILE: Phase.COMPILE}
_LATER = {Phase.FIRST_BATCH: Phase.DATA_STALL, Phase.COMPILE: Phase.RECOMPILE}

GROUP_NS = 1_000_000_000
"""Data waits of steps within so long are drawn together at its start: the sums stay exact, and a job of a million
steps does not become two million segments."""

ALL_REPLAY = -1


@dataclass(kw_only=True)
class Loop:
    """The loop of one attempt: the lead rank's steps from `join`, when the last rank began, to the last step's end.

    replayed[i]: how many of step i's samples lay below the high-water mark; ALL_REPLAY = it moved nothing.
    """

    lead: Trainer
    last: Trainer
    join: int
    end: int
    losses: StepLosses
    replayed: list[int] = field(default_factory=list)

    @property
    def steps(self) -> Steps:
        return self.lead.steps

    def start_of(self, index: int) -> int:
        return max(self.join, self.steps.start[index])

    def net(self, index: int) -> int:
        """The step's own time, without what was taken out of it."""
        return max(0, self.steps.end[index] - self.start_of(index) - self.losses.total(index))


def open_loop(trainers: Sequence[Trainer], attempt_end: int) -> Loop | None:
    """Find the lead rank (most steps, then furthest cursor, then lowest rank). None: no step was completed."""
    stepping = [trainer for trainer in trainers if len(trainer.steps)]
    if not stepping:
        return None
    lead = min(stepping, key=lambda t: (-len(t.steps), -t.steps.after[-1], _rank(t), t.name))
    last = max(stepping, key=lambda t: (t.steps.start[0], -_rank(t), t.name))
    join = max(lead.steps.start[0], min(last.steps.start[0], lead.steps.end[0]))
    losses = largest_losses(lead, stepping, attempt_end)
    return Loop(lead=lead, last=last, join=join, end=lead.steps.end[-1], losses=losses)


def _rank(trainer: Trainer) -> int:
    return -1 if trainer.rank is None else trainer.rank


def mark_replay(loops: Sequence[Loop]) -> int | None:
    """Split every step's samples at the high-water mark, in the order in which steps completed over all attempts.

    Fills loop.replayed and returns the final high-water mark.
    """
    numbered = enumerate(loops)
    order = sorted((end, number, index) for number, loop in numbered for index, end in enumerate(loop.steps.end))
    for loop in loops:
        loop.replayed = [0] * len(loop.steps)
    mark: int | None = None
    for _, number, index in order:
        steps = loops[number].steps
        before, after = steps.before[index], steps.after[index]
        mark = before if mark is None else mark
        # A step that moves nothing is replay, however few samples it had.
        loops[number].replayed[index] = ALL_REPLAY if after <= mark else max(0, mark - before)
        mark = max(mark, after)
    return mark


def loop_pieces(loop: Loop, number: int, fill: Sequence[Piece]) -> list[Piece]:
    """The loop's time, gap-free from join to end. fill: the lead's in-loop spans, for time between two windows."""
    pieces: list[Piece] = []
    at, index = loop.join, 0
    while index < len(loop.steps):
        start = max(at, loop.start_of(index))
        if start > at:
            _add_gap(pieces, at, start, number, fill)
        following = _group(loop, index)
        if following > index + 1:
            _add_group(pieces, loop, index, following, number)
        else:
            for piece in _step_pieces(loop, index, start, loop.steps.end[index], number):
                append(pieces, piece)
        at = max(at, loop.steps.end[following - 1])
        index = following
    return pieces


def _group(loop: Loop, first: int) -> int:
    """Steps from `first` that can be told as one: back to back, alike, and nothing but data waited for. Returns the
    number after the last of them."""
    steps, losses, replayed = loop.steps, loop.losses, loop.replayed
    kind, start = replayed[first], steps.start[first]
    if first == 0 or kind > 0 or first in losses.blocked:
        return first + 1
    index, waited = first, bool(losses.wait[first])
    while index + 1 < len(steps):
        after = index + 1
        waited = waited or bool(losses.wait[after])
        alike = steps.start[after] == steps.end[index] and replayed[after] == kind and after not in losses.blocked
        if not alike or (waited and steps.end[after] - start > GROUP_NS):
            break
        index = after
    return index + 1


def _add_group(pieces: list[Piece], loop: Loop, first: int, following: int, number: int) -> None:
    steps, rank, provenance = loop.steps, loop.lead.rank, loop.lead.provenance
    start, end = steps.start[first], steps.end[following - 1]
    middle = start + sum(loop.losses.wait[first:following])
    phase = Phase.REPLAY if loop.replayed[first] == ALL_REPLAY else Phase.STEP
    append(pieces, Piece(start, middle, Phase.DATA_STALL, number, rank, provenance))
    append(pieces, Piece(middle, end, phase, number, rank, provenance))


def _add_gap(pieces: list[Piece], start: int, end: int, number: int, fill: Sequence[Piece]) -> None:
    low = bisect_left(fill, start + 1, key=lambda piece: piece.end)
    high = bisect_left(fill, end, key=lambda piece: piece.start)
    covered = [relabelled(piece, later(piece.phase), number) for piece in clip(fill[low:high], start, end)]
    holes = [Piece(a, b, Phase.UNATTRIBUTED, attempt=number) for a, b in gaps(covered, start, end)]
    for piece in sorted(covered + holes, key=lambda piece: piece.start):
        append(pieces, piece)


def later(phase: Phase) -> Phase:
    """A leaf's name after the attempt's first step."""
    return _LATER.get(phase, phase)


def earlier(phase: Phase) -> Phase:
    """A leaf's name up to the end of the attempt's first step."""
    return _IN_FIRST_STEP.get(phase, phase)


def _step_pieces(loop: Loop, index: int, start: int, end: int, number: int) -> list[Piece]:
    """One step: what was taken out under its own leaf, then of the rest replay before productive."""
    rank, provenance = loop.lead.rank, loop.lead.provenance
    taken = _taken(loop, index, start, end, number)
    if index == 0:
        # What is taken out of the first step counts as lying before it, so that starting ends at a productive instant.
        taken, at = _packed(taken, start)
        free = [(at, end)] if at < end else []
    else:
        free = gaps(taken, start, end)
    left = _replay_time(loop, index, sum(high - low for low, high in free))
    pieces = list(taken)
    for low, high in free:
        middle = low + min(left, high - low)
        left -= middle - low
        pieces.append(Piece(low, middle, Phase.REPLAY, number, rank, provenance))
        pieces.append(Piece(middle, high, Phase.STEP, number, rank, provenance))
    return sorted((piece for piece in pieces if piece.start < piece.end), key=lambda piece: piece.start)


def _taken(loop: Loop, index: int, start: int, end: int, number: int) -> list[Piece]:
    blocked = loop.losses.blocked.get(index)
    if blocked is None:
        begin = loop.steps.start[index]
        wait = loop.losses.wait[index]
        blocked = [Piece(begin, begin + wait, Phase.DATA_STALL, number, loop.lead.rank, loop.lead.provenance)]
    rename = earlier if index == 0 else later
    return [relabelled(piece, rename(piece.phase), number) for piece in clip(blocked, start, end)]


def _packed(taken: list[Piece], start: int) -> tuple[list[Piece], int]:
    packed, at = [], start
    for piece in taken:
        packed.append(moved(piece, at, at + piece.length))
        at += piece.length
    return packed, at


def _replay_time(loop: Loop, index: int, net: int) -> int:
    replayed = loop.replayed[index]
    if replayed == ALL_REPLAY:
        return net
    samples = loop.steps.after[index] - loop.steps.before[index]
    return net * replayed // samples if replayed else 0
