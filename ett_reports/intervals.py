"""Half-open intervals of integer nanoseconds: flatten, clip, overlay, sum."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ett_reports.events import PHASE_ORDER, Phase, Provenance

_WORSE = {Provenance.MEASURED: 0, Provenance.INFERRED: 1, Provenance.ESTIMATED: 2}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of one attempt's time with one leaf."""

    start: int
    end: int
    phase: Phase
    attempt: int | None = None
    rank: int | None = None
    provenance: Provenance = Provenance.MEASURED

    @property
    def length(self) -> int:
        return self.end - self.start


def worse(*provenances: Provenance) -> Provenance:
    """The least certain of them."""
    return max(provenances, key=lambda item: _WORSE[item])


def moved(piece: Piece, start: int, end: int) -> Piece:
    """The same piece elsewhere. (Twice as fast as dataclasses.replace, and this is where reducing spends its time.)"""
    return Piece(start, end, piece.phase, piece.attempt, piece.rank, piece.provenance)


def relabelled(piece: Piece, phase: Phase, attempt: int | None) -> Piece:
    """The same stretch under another leaf or attempt."""
    return Piece(piece.start, piece.end, phase, attempt, piece.rank, piece.provenance)


def clip(pieces: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """The parts within [start, end)."""
    kept = []
    for piece in pieces:
        if piece.start >= start and piece.end <= end:
            kept.append(piece)
        elif piece.start < end and piece.end > start:
            kept.append(moved(piece, max(piece.start, start), min(piece.end, end)))
    return [piece for piece in kept if piece.start < piece.end]


def innermost(pieces: Iterable[Piece]) -> list[Piece]:
    """Disjoint pieces in order; where several run, the innermost has the time: latest start, then earliest end."""
    ordered = sorted((p for p in pieces if p.start < p.end), key=lambda p: (p.start, -p.end, -PHASE_ORDER[p.phase]))
    bounds = sorted({p.start for p in ordered} | {p.end for p in ordered})
    flat: list[Piece] = []
    running: list[tuple[int, int, int, int]] = []
    following = 0
    for start, end in itertools.pairwise(bounds):
        while following < len(ordered) and ordered[following].start <= start:
            piece = ordered[following]
            heapq.heappush(running, (-piece.start, piece.end, PHASE_ORDER[piece.phase], following))
            following += 1
        while running and running[0][1] <= start:
            heapq.heappop(running)
        if running:
            append(flat, moved(ordered[running[0][3]], start, end))
    return flat


def append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece at the end, joined to the last one where they are alike; empty pieces vanish."""
    if piece.start >= piece.end:
        return
    last = pieces[-1] if pieces else None
    if last is not None and last.end == piece.start and _alike(last, piece):
        pieces[-1] = moved(last, last.start, piece.end)
    else:
        pieces.append(piece)


def _alike(one: Piece, other: Piece) -> bool:
    return (
        one.phase is other.phase
        and one.attempt == other.attempt
        and one.rank == other.rank
        and one.provenance is other.provenance
    )


def gaps(pieces: Sequence[Piece], start: int, end: int) -> list[tuple[int, int]]:
    """What disjoint, ordered pieces leave open of [start, end)."""
    found, at = [], start
    for piece in pieces:
        if piece.start > at:
            found.append((at, min(piece.start, end)))
        at = max(at, piece.end)
    if at < end:
        found.append((at, end))
    return [(low, high) for low, high in found if low < high]


def filled(pieces: Iterable[Piece], filling: Iterable[Piece], start: int, end: int) -> list[Piece]:
    """Disjoint pieces over [start, end), with the filling where they leave it open."""
    base = sorted(pieces, key=lambda piece: piece.start)
    extra: list[Piece] = []
    candidates = sorted(filling, key=lambda piece: piece.start)
    following = 0
    for low, high in gaps(base, start, end):
        while following < len(candidates) and candidates[following].end <= low:
            following += 1
        index = following
        while index < len(candidates) and candidates[index].start < high:
            extra.extend(clip([candidates[index]], low, high))
            index += 1
    return sorted(base + extra, key=lambda piece: piece.start)


def union_length(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of intervals."""
    total, at = 0, None
    for start, end in sorted(spans):
        low = start if at is None else max(start, at)
        if end > low:
            total += end - low
            at = end
    return total


class Coverage:
    """Disjoint, ordered intervals with the length of any stretch of them in logarithmic time."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(intervals):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            elif end > start:
                self.starts.append(start)
                self.ends.append(end)
        self.before = [0]
        for start, end in zip(self.starts, self.ends, strict=True):
            self.before.append(self.before[-1] + end - start)

    def up_to(self, instant: int) -> int:
        """Covered length before an instant."""
        index = bisect_right(self.starts, instant)
        return self.before[index] - max(0, self.ends[index - 1] - instant) if index else 0

    def within(self, start: int, end: int) -> int:
        return self.up_to(end) - self.up_to(start) if end > start else 0

    def next_from(self, instant: int) -> int | None:
        """The first covered instant at or after this one."""
        index = bisect_right(self.ends, instant)
        return max(instant, self.starts[index]) if index < len(self.starts) else None

    @property
    def total(self) -> int:
        return self.before[-1]
