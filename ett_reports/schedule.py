"""Startup and shutdown as a graph that can be run again with a phase shortened (section 10, by the rules of 5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ett_reports.attempt_time import Attempt, closed_end
from ett_reports.critical_path import Branch, RankBranches, walk_back
from ett_reports.events import DERIVED_PHASES, Phase
from ett_reports.placement import Trainer


@dataclass(frozen=True, kw_only=True)
class Region:
    """The branches of one attempt before a join. Instants are unix ns on the reference clock."""

    start: int
    join: int
    ranks: tuple[RankBranches, ...]
    last: int

    def has(self, phase: Phase) -> bool:
        return any(branch.phase is phase for rank in self.ranks for branch in rank.branches)

    def exposed(self) -> dict[Phase, int]:
        """What the walk assigns to each phase."""
        found: dict[Phase, int] = {}
        for piece in walk_back(self.ranks, self.last, self.start, self.join).pieces:
            found[piece.phase] = found.get(piece.phase, 0) + piece.end - piece.start
        return found


def startup_of(attempt: Attempt) -> Region:
    """Launch to the first step, or to the end of an attempt that never stepped."""
    join = attempt.bounds.end if attempt.loop is None else attempt.loop.join
    launched = attempt.bounds.launched
    start = attempt.bounds.start if launched is None else launched.ns
    return _region(attempt, start, max(start, join))


def shutdown_of(attempt: Attempt) -> Region | None:
    """The last step to the release; None for an attempt that never stepped."""
    if attempt.loop is None:
        return None
    return _region(attempt, attempt.loop.end, max(attempt.loop.end, attempt.bounds.end))


def _region(attempt: Attempt, start: int, join: int) -> Region:
    ranks = [RankBranches(t.rank, _branches(attempt, t, start, join)) for t in attempt.placed.trainers]
    latest = [max((branch.end for branch in rank.branches), default=-1) for rank in ranks]
    last = latest.index(max(latest)) if latest else 0
    if attempt.loop is not None and join <= attempt.loop.join:
        last = attempt.placed.trainers.index(attempt.loop.last)
    return Region(start=start, join=join, ranks=tuple(ranks), last=last)


def _branches(attempt: Attempt, trainer: Trainer, start: int, join: int) -> list[Branch]:
    found = []
    for span in trainer.spans:
        end, provenance = closed_end(attempt, trainer, span)
        if span.phase not in DERIVED_PHASES and start <= span.start_ns and end <= join:
            found.append(
                Branch(
                    reference=span.reference,
                    phase=span.phase,
                    start=span.start_ns,
                    end=end,
                    thread=span.thread,
                    waits_for=span.waits_for,
                    provenance=provenance,
                )
            )
    launched = attempt.bounds.launched
    first = min((branch.start for branch in found), default=trainer.start_ns)
    if launched is not None and launched.ns == start < first <= join:
        found.append(Branch(f"{trainer.name}#launcher_init", Phase.LAUNCHER_INIT, start, first))
    return found


def shortened(region: Region, phase: Phase, factor: float) -> Region:
    """The region with every span of `phase` at `factor` of its length, and what followed it moved up to it.

    A branch follows the spans that it recorded waiting for; with none recorded, the one that ended last before it on
    its thread, else on its rank. What is left between a branch and what it follows keeps its length.
    """
    nodes = [_nodes(rank, index) for index, rank in enumerate(region.ranks)]
    every = {node.branch.reference: node for rank in nodes for node in rank}
    tops = sorted((n for n in every.values() if n.parent is None), key=lambda n: (n.branch.start, n.branch.end))
    for node in tops:
        node.place(_new_start(node, every), phase, factor, inside=False)
    old_end = max((node.branch.end for node in every.values()), default=region.join)
    new_end = max((node.end for node in every.values()), default=region.join)
    ranks = tuple(
        RankBranches(rank.rank, [replace(node.branch, start=node.start, end=node.end, children=[]) for node in own])
        for rank, own in zip(region.ranks, nodes, strict=True)
    )
    return replace(region, join=new_end + region.join - old_end, ranks=ranks)


@dataclass(eq=False)
class _Node:
    """A branch, what lies within it on its thread, and where it comes to lie."""

    branch: Branch
    rank: int
    parent: _Node | None = None
    within: list[_Node] = field(default_factory=list)
    start: int = 0
    end: int = 0
    placed: bool = False

    def place(self, start: int, phase: Phase, factor: float, *, inside: bool) -> None:
        """Lay the branch from `start`: its own time scaled if it is of the phase, its children one after the other."""
        scale = factor if inside or self.branch.phase is phase else 1.0
        self.start, self.placed = start, True
        at, old = start, self.branch.start
        for child in self.within:
            at += round(max(0, child.branch.start - old) * scale)
            child.place(at, phase, factor, inside=scale != 1.0)
            at, old = child.end, child.branch.end
        self.end = at + round(max(0, self.branch.end - old) * scale)


def _nodes(rank: RankBranches, index: int) -> list[_Node]:
    nodes = [_Node(branch, index) for branch in rank.branches]
    open_on: dict[str, list[_Node]] = {}
    for node in sorted(nodes, key=lambda n: (n.branch.start, -n.branch.end)):
        if node.branch.thread is None:
            continue
        stack = open_on.setdefault(node.branch.thread, [])
        while stack and stack[-1].branch.end < node.branch.end:
            stack.pop()
        if stack and stack[-1].branch.end > node.branch.start:
            node.parent = stack[-1]
            stack[-1].within.append(node)
        stack.append(node)
    return nodes


def _new_start(node: _Node, every: dict[str, _Node]) -> int:
    own = node.branch
    placed = [one for one in every.values() if one.placed and one.branch.end <= own.start]
    waited = [one for one in placed if one.branch.reference in own.waits_for]
    if not waited:
        before = [one for one in placed if one.rank == node.rank and one.parent is None]
        same_thread = [one for one in before if own.thread is not None and one.branch.thread == own.thread]
        waited = [max(same_thread or before, key=lambda one: one.branch.end)] if before else []
    if not waited:
        return own.start
    gap = own.start - max(one.branch.end for one in waited)
    return max(one.end for one in waited) + gap
