"""The critical path: which of the branches that run side by side has the wall time before a join (section 5)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from ett_reports.events import PHASE_ORDER, Phase, Provenance
from ett_reports.intervals import Piece, append

DEEPEST = 100
"""Spans nested deeper lie beside each other at this depth: nobody writes them, and a log must not exhaust the stack."""


@dataclass(eq=False)
class Branch:
    """A span as the walk sees it: closed, on the reference clock."""

    reference: str
    phase: Phase
    start: int
    end: int
    thread: str | None = None
    waits_for: tuple[str, ...] = ()
    provenance: Provenance = Provenance.MEASURED
    children: list[Branch] = field(default_factory=list)

    @property
    def latest_first(self) -> tuple[int, int, int, str]:
        """Ended last; ties: earlier start, then the order of section 4."""
        return (-self.end, self.start, PHASE_ORDER[self.phase], self.reference)


@dataclass
class Walk:
    """Pieces in order of time, gap-free over the region that was asked for; dropped_cycles counts what was refused."""

    pieces: list[Piece]
    dropped_cycles: int


@dataclass(frozen=True)
class RankBranches:
    """One rank's branches; only those that ended by the join take part."""

    rank: int | None
    branches: Sequence[Branch]


class _Rank:
    """One rank's branches while the walk's instant falls: running ones in a heap, ended ones on a stack."""

    def __init__(self, given: RankBranches, join: int) -> None:
        self.rank = given.rank
        top = _nest([branch for branch in given.branches if branch.end <= join])
        self._ended = sorted(top, key=lambda branch: branch.latest_first, reverse=True)
        self._running: list[tuple[tuple[int, int, int, str], Branch]] = []

    def choose(self, at: int, passed: set[int]) -> Branch | None:
        """The span running at an instant that ends last, else the latest ended."""
        while self._ended and self._ended[-1].end > at:
            branch = self._ended.pop()
            heapq.heappush(self._running, (branch.latest_first, branch))
        while self._running and self._running[0][1].start >= at:
            heapq.heappop(self._running)
        if self._running:
            return self._running[0][1]
        while self._ended and id(self._ended[-1]) in passed:
            self._ended.pop()
        return self._ended[-1] if self._ended else None


def _nest(branches: list[Branch]) -> list[Branch]:
    """Put spans that lie within another one of the same thread under it; returns those on top."""
    top: list[Branch] = []
    stacks: dict[str, list[Branch]] = {}
    for branch in branches:
        branch.children = []
    for branch in sorted(branches, key=lambda b: (b.start, -b.end, PHASE_ORDER[b.phase], b.reference)):
        if branch.thread is None or branch.start == branch.end:
            top.append(branch)
            continue
        stack = stacks.setdefault(branch.thread, [])
        while stack and not (stack[-1].start <= branch.start and branch.end <= stack[-1].end):
            stack.pop()
        (stack[-1].children if stack else top).append(branch)
        if len(stack) < DEEPEST:
            stack.append(branch)
    return top


class _Walker:
    """Walks back from a join; `at` only ever falls."""

    def __init__(self, ranks: Sequence[RankBranches], first: int, start: int, join: int) -> None:
        self.start = start
        self.at = join
        self.join = join
        self.given = list(ranks)
        self.states: dict[int, _Rank] = {}
        self.current = first
        taking_part = ((i, b) for i, rank in enumerate(ranks) for b in rank.branches if b.end <= join)
        self.by_reference = {branch.reference: (index, branch) for index, branch in taking_part}
        self.entered: set[int] = set()
        self.passed: set[int] = set()
        self.backwards: list[Piece] = []
        self.dropped = 0

    def walk(self) -> None:
        branch = self._fallback()
        while branch is not None and self.at > self.start:
            self._own(branch.end, Phase.UNATTRIBUTED, Provenance.MEASURED)
            self.passed.add(id(branch))
            branch = self._through(branch) or self._fallback()
        self._own(self.start, Phase.UNATTRIBUTED, Provenance.MEASURED)

    def _through(self, branch: Branch) -> Branch | None:
        """Give the branch its time, its children theirs. Returns where a recorded wait leads, if one does."""
        for child in sorted(branch.children, key=lambda child: child.latest_first):
            if child.start >= self.at:
                continue
            self._own(child.end, branch.phase, branch.provenance)
            led = self._through(child)
            if led is not None:
                return led
        self._own(branch.start, branch.phase, branch.provenance)
        return self._waited_for(branch)

    def _waited_for(self, branch: Branch) -> Branch | None:
        known = [self.by_reference[name] for name in branch.waits_for if name in self.by_reference]
        for rank, target in sorted(known, key=lambda item: item[1].latest_first):
            if id(target) in self.entered or target is branch:
                self.dropped += 1
                continue
            self.entered.add(id(target))
            self.current = rank
            return target
        return None

    def _fallback(self) -> Branch | None:
        state = self.states.get(self.current)
        if state is None:
            state = self.states[self.current] = _Rank(self.given[self.current], self.join)
        return state.choose(self.at, self.passed)

    def _own(self, back_to: int, phase: Phase, provenance: Provenance) -> None:
        low = max(back_to, self.start)
        if low < self.at:
            rank = self.given[self.current].rank if phase is not Phase.UNATTRIBUTED else None
            self.backwards.append(Piece(low, self.at, phase, rank=rank, provenance=provenance))
            self.at = low


def walk_back(ranks: Sequence[RankBranches], first: int, start: int, join: int) -> Walk:
    """Assign every instant of [start, join) to a branch or to nobody (unattributed).

    ranks: the branches of each rank; first: index of the last rank at the join, where the walk starts.
    """
    if not ranks:
        pieces = [Piece(start, join, Phase.UNATTRIBUTED)] if start < join else []
        return Walk(pieces, 0)
    walker = _Walker(ranks, first, start, join)
    walker.walk()
    pieces = []
    for piece in reversed(walker.backwards):
        append(pieces, piece)
    return Walk(pieces, walker.dropped)
