"""One attempt's time, gap-free from its start to its end: scheduling, startup, loop, and what came after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ett_reports.critical_path import Branch, RankBranches, walk_back
from ett_reports.events import DERIVED_PHASES, SHUTDOWN_PHASES, Phase, Provenance
from ett_reports.intervals import Piece, append, clip, filled, innermost, moved, relabelled, worse
from ett_reports.loop_time import Loop, earlier, later, loop_pieces
from ett_reports.placement import PlacedAttempt, PlacedSpan, Trainer
from ett_reports.report import JobState
from ett_reports.step_losses import loop_spans
from ett_reports.verdict import Bounds, Verdict


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt, judged: all that the job's timeline needs of it."""

    placed: PlacedAttempt
    bounds: Bounds
    verdict: Verdict
    loop: Loop | None
    consumed: bool

    @property
    def number(self) -> int:
        return self.placed.number


@dataclass(frozen=True, kw_only=True)
class AttemptTime:
    """Its pieces over [bounds.start, bounds.end), before other attempts take their share."""

    pieces: tuple[Piece, ...]
    dropped_cycles: int


def attempt_time(attempt: Attempt) -> AttemptTime:
    """Assign every instant of the attempt to a leaf."""
    bounds, loop = attempt.bounds, attempt.loop
    head, at = _scheduling(attempt)
    join = bounds.end if loop is None else min(max(loop.join, at), bounds.end)
    startup, startup_cycles = _walk(attempt, at, join, earlier if loop is not None else _unchanged)
    pieces = head + startup
    cycles = startup_cycles
    if loop is not None:
        fill = loop_spans(loop.lead, bounds.end)
        pieces += clip(loop_pieces(loop, attempt.number, fill), join, bounds.end)
        tail_start = min(max(loop.end, join), bounds.end)
        tail, tail_cycles = _walk(attempt, tail_start, bounds.end, later)
        pieces += tail
        cycles += tail_cycles
    pieces = _with_agents(attempt, pieces)
    pieces = _explain_end(attempt, pieces)
    joined: list[Piece] = []
    for piece in pieces:
        append(joined, relabelled(piece, piece.phase, attempt.number))
    return AttemptTime(pieces=tuple(joined), dropped_cycles=cycles)


def _unchanged(phase: Phase) -> Phase:
    return phase


def _scheduling(attempt: Attempt) -> tuple[list[Piece], int]:
    """Queue wait up to the allocation, hardware setup up to the launch. Returns them and where they end."""
    bounds = attempt.bounds
    ends_at = [bounds.end] if attempt.verdict.failure is None else [attempt.verdict.failure]
    began = [trainer.start_ns for trainer in attempt.placed.trainers]
    limit = max(bounds.start, min(began + ends_at))
    allocated = bounds.allocated.ns if bounds.allocated is not None else None
    launched = bounds.launched.ns if bounds.launched is not None else None
    pieces: list[Piece] = []
    at = bounds.start
    if bounds.submitted is not None:
        until = allocated if allocated is not None else launched
        end = limit if until is None else min(max(until, at), bounds.end)
        provenance = Provenance.INFERRED if bounds.allocated is None else bounds.allocated.provenance
        append(pieces, Piece(at, end, Phase.QUEUE_WAIT, provenance=worse(bounds.submitted.provenance, provenance)))
        at = max(at, end)
    if bounds.allocated is not None:
        end = max(at, limit) if launched is None else min(max(launched, at), bounds.end)
        provenance = Provenance.INFERRED if bounds.launched is None else bounds.launched.provenance
        append(pieces, Piece(at, end, Phase.HARDWARE_SETUP, provenance=worse(bounds.allocated.provenance, provenance)))
        at = end
    return pieces, at


def _walk(attempt: Attempt, start: int, end: int, rename: Callable[[Phase], Phase]) -> tuple[list[Piece], int]:
    """The critical path over [start, end), starting on the last rank at the join."""
    if start >= end:
        return [], 0
    trainers = attempt.placed.trainers
    if not trainers:
        return _nobody_trained(attempt, start, end), 0
    ranks = [RankBranches(trainer.rank, _branches(attempt, trainer, rename)) for trainer in trainers]
    walk = walk_back(ranks, _last_rank(attempt, ranks, end), start, end)
    return walk.pieces, walk.dropped_cycles


def _nobody_trained(attempt: Attempt, start: int, end: int) -> list[Piece]:
    """Launched, but no trainer left a line: the launcher's part is all that is known."""
    if attempt.bounds.launched is None:
        return [Piece(start, end, Phase.UNATTRIBUTED)]
    failure = attempt.verdict.failure
    until = end if failure is None else min(max(failure, start), end)
    pieces: list[Piece] = []
    append(pieces, Piece(start, until, Phase.LAUNCHER_INIT, provenance=Provenance.INFERRED))
    append(pieces, Piece(until, end, Phase.UNATTRIBUTED))
    return pieces


def _last_rank(attempt: Attempt, ranks: Sequence[RankBranches], join: int) -> int:
    """At the first step: the rank that began it last. At the end: the rank whose span ended last."""
    loop, trainers = attempt.loop, attempt.placed.trainers
    if loop is not None and join <= loop.join:
        return trainers.index(loop.last)

    def latest(index: int) -> tuple[int, bool, int]:
        ends = [branch.end for branch in ranks[index].branches if branch.end <= join]
        lead = loop is not None and trainers[index] is loop.lead
        return (max(ends, default=-1), lead, -index)

    return max(range(len(ranks)), key=latest)


def _branches(attempt: Attempt, trainer: Trainer, rename: Callable[[Phase], Phase]) -> list[Branch]:
    spans = [span for span in trainer.spans if span.phase not in DERIVED_PHASES]
    branches = []
    for span in spans:
        end, provenance = closed_end(attempt, trainer, span)
        branches.append(
            Branch(
                reference=span.reference,
                phase=rename(span.phase),
                start=span.start_ns,
                end=end,
                thread=span.thread,
                waits_for=span.waits_for,
                provenance=provenance,
            )
        )
    launched = attempt.bounds.launched
    if launched is not None:
        first = min((span.start_ns for span in spans), default=trainer.start_ns)
        provenance = worse(launched.provenance, trainer.provenance)
        if first > launched.ns:
            name = f"{trainer.name}#launcher_init"
            branches.append(Branch(name, Phase.LAUNCHER_INIT, launched.ns, first, provenance=provenance))
    return branches


def closed_end(attempt: Attempt, trainer: Trainer, span: PlacedSpan) -> tuple[int, Provenance]:
    """When a span ended: an open one with the failure that cut it short, else with the attempt, `inferred`."""
    if span.end_ns is not None:
        return span.end_ns, trainer.provenance
    failure = attempt.verdict.failure
    end = failure if failure is not None and span.start_ns < failure else attempt.bounds.end
    return max(span.start_ns, end), worse(Provenance.INFERRED, trainer.provenance)


def _with_agents(attempt: Attempt, pieces: list[Piece]) -> list[Piece]:
    """Where no trainer explains the time, a launcher's or scheduler's own spans may."""
    spans = [
        Piece(span.start_ns, closed_end(attempt, agent, span)[0], span.phase, provenance=agent.provenance)
        for agent in attempt.placed.agents
        for span in agent.spans
        if span.phase not in DERIVED_PHASES
    ]
    if not spans:
        return pieces
    explained = [piece for piece in pieces if piece.phase is not Phase.UNATTRIBUTED]
    bounds = attempt.bounds
    told = filled(explained, innermost(spans), bounds.start, bounds.end)
    rest = [piece for piece in pieces if piece.phase is Phase.UNATTRIBUTED]
    return filled(told, rest, bounds.start, bounds.end)


def _explain_end(attempt: Attempt, pieces: list[Piece]) -> list[Piece]:
    """Name the gaps around the end: a step cut short, the time to detect, the teardown of what is left."""
    bounds, verdict = attempt.bounds, attempt.verdict
    if verdict.outcome is JobState.FAILED and verdict.failure is not None and verdict.detected is not None:
        before = clip(pieces, bounds.start, verdict.failure)
        if attempt.loop is not None:
            lost_from = max(attempt.loop.end, bounds.start)
            before = _rename_gaps(before, lost_from, _lost_until(attempt), Phase.LOST_STEP, verdict.provenance)
        hang = [Piece(verdict.failure, verdict.detected, Phase.HANG, provenance=verdict.provenance)]
        after = clip(pieces, verdict.detected, bounds.end)
        provenance = worse(verdict.provenance, bounds.end_provenance)
        return before + hang + _rename_gaps(after, verdict.detected, bounds.end, Phase.TEARDOWN, provenance)
    if verdict.outcome is JobState.COMPLETED and bounds.released is not None and attempt.placed.trainers:
        quiet = max(trainer.last_life_ns for trainer in attempt.placed.trainers)
        return _rename_gaps(pieces, quiet, bounds.end, Phase.TEARDOWN, bounds.end_provenance)
    return pieces


def _lost_until(attempt: Attempt) -> int:
    """A step can only have been cut short while there was one to run: not after shutdown began."""
    assert attempt.verdict.failure is not None and attempt.loop is not None
    if attempt.consumed:
        return attempt.loop.end
    opened = [
        span.start_ns
        for trainer in attempt.placed.trainers
        for span in trainer.spans
        if span.phase in SHUTDOWN_PHASES and span.start_ns >= attempt.loop.end
    ]
    return min([*opened, attempt.verdict.failure])


def _rename_gaps(pieces: Sequence[Piece], start: int, end: int, phase: Phase, provenance: Provenance) -> list[Piece]:
    """Unattributed time within [start, end) gets a name."""
    renamed: list[Piece] = []
    for piece in pieces:
        if piece.phase is not Phase.UNATTRIBUTED or piece.end <= start or piece.start >= end:
            renamed.append(piece)
            continue
        low, high = max(piece.start, start), min(piece.end, end)
        parts = (
            moved(piece, piece.start, low),
            Piece(low, high, phase, piece.attempt, piece.rank, worse(provenance, piece.provenance)),
            moved(piece, high, piece.end),
        )
        renamed.extend(part for part in parts if part.start < part.end)
    return renamed
