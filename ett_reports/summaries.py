"""What stands beside the levels: devices, busy time, stragglers, attempts, checkpoints, metrics, what is missing."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ett_reports.attempt_time import Attempt, closed_end
from ett_reports.events import COMPONENT_OF, DERIVED_PHASES, PHASE_ORDER, Phase, Point, Source
from ett_reports.intervals import Coverage, union_length
from ett_reports.log import EventLog
from ett_reports.loop_time import earlier, later
from ett_reports.placement import Stamp, Trainer
from ett_reports.recoveries import Recovery
from ett_reports.report import AttemptReport, CheckpointTotals, JobState, PhaseTotal, Straggler, TrainingMetrics
from ett_reports.timeline import Timeline
from ett_reports.verdict import exit_codes


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Time in which devices were held. lost_ns and device_ns are device-nanoseconds; None = nobody told of devices."""

    held_ns: int
    productive_held_ns: int
    lost_ns: int | None
    device_ns: int | None


def devices(timeline: Timeline, productive: Coverage) -> Devices:
    """Held: from allocation to release; where nobody told of an allocation, from the first trainer's start."""
    intervals, lost, total = [], 0, 0
    known = False
    for attempt in timeline.attempts:
        held = _held(attempt)
        if held is None:
            continue
        start, end = held
        intervals.append(held)
        count = device_count(attempt)
        if count is not None:
            known = True
            total += count * (end - start)
            lost += count * (end - start - productive.within(start, end))
    union = Coverage(intervals)
    return Devices(
        held_ns=union.total,
        productive_held_ns=sum(productive.within(a, b) for a, b in zip(union.starts, union.ends, strict=True)),
        lost_ns=lost if known else None,
        device_ns=total if known else None,
    )


def _held(attempt: Attempt) -> tuple[int, int] | None:
    bounds = attempt.bounds
    if bounds.allocated is not None:
        start = bounds.allocated.ns
    elif bounds.launched is not None:
        start = bounds.launched.ns
    elif attempt.placed.trainers:
        start = min(trainer.start_ns for trainer in attempt.placed.trainers)
    else:
        return None
    start = max(start, bounds.start)
    return (start, bounds.end) if start < bounds.end else None


def device_count(attempt: Attempt) -> int | None:
    """Devices allocated to an attempt: the launcher's word, else what its ranks hold."""
    for name in (Point.ALLOCATED, Point.SUBMITTED):
        for stamp in attempt.placed.stamps.get(name, []):
            count = stamp.fact.attrs.get("devices")
            if type(count) is int and count >= 0:
                return count
    held = [trainer.devices for trainer in attempt.placed.trainers if trainer.devices is not None]
    return sum(held) if held else None


@dataclass(frozen=True, kw_only=True)
class RankBusy:
    """How long one process ran each leaf, and how often."""

    attempt: int
    trainer: Trainer
    length: dict[Phase, int]
    count: dict[Phase, int]


def busy_ranks(timeline: Timeline) -> list[RankBusy]:
    """Every process's busy time, by attempt."""
    return [
        _busy(attempt, trainer)
        for attempt in timeline.attempts
        for trainer in attempt.placed.trainers + attempt.placed.agents
    ]


def _busy(attempt: Attempt, trainer: Trainer) -> RankBusy:
    """Leaves are named by where a span lies (compile or recompile); spans are clipped to the attempt."""
    steps = trainer.steps
    first_end = steps.end[0] if len(steps) else None
    found: dict[Phase, list[tuple[int, int]]] = {}
    for span in trainer.spans:
        if span.phase in DERIVED_PHASES:
            continue
        end = min(closed_end(attempt, trainer, span)[0], attempt.bounds.end)
        start = max(span.start_ns, attempt.bounds.start)
        in_loop = first_end is not None and start >= first_end
        phase = later(span.phase) if in_loop else earlier(span.phase) if first_end is not None else span.phase
        if start < end:
            found.setdefault(phase, []).append((start, end))
    length = {phase: union_length(spans) for phase, spans in found.items()}
    count = {phase: len(spans) for phase, spans in found.items()}
    for phase, waits in ((Phase.FIRST_BATCH, steps.wait[:1]), (Phase.DATA_STALL, steps.wait[1:])):
        if any(waits):
            # A step's wait and a data span are the same wait told twice.
            length[phase] = max(length.get(phase, 0), sum(waits))
            count[phase] = max(count.get(phase, 0), sum(map(bool, waits)))
    return RankBusy(attempt=attempt.number, trainer=trainer, length=length, count=count)


def phase_totals(timeline: Timeline, ranks: Iterable[RankBusy]) -> tuple[PhaseTotal, ...]:
    """Exposed, busy and count of every leaf that occurs, in the order of section 4."""
    exposed: Counter[Phase] = Counter()
    for piece in timeline.pieces:
        exposed[piece.phase] += piece.length
    by_attempt: dict[int, Counter[Phase]] = {}
    count: Counter[Phase] = Counter()
    for attempt, time in zip(timeline.attempts, timeline.times, strict=True):
        own = by_attempt[attempt.number] = Counter()
        for piece in time.pieces:
            own[piece.phase] += piece.length
        if attempt.loop is not None:
            count[Phase.STEP] += len(attempt.loop.steps)
    for rank in ranks:
        own = by_attempt[rank.attempt]
        for phase, length in rank.length.items():
            own[phase] = max(own[phase], length)
        count.update(rank.count)
    busy = sum(by_attempt.values(), Counter())
    # Retry wait lies between attempts, so no attempt is busy with it.
    busy[Phase.RETRY_WAIT] = max(busy[Phase.RETRY_WAIT], exposed[Phase.RETRY_WAIT])
    return tuple(
        PhaseTotal(
            phase=phase,
            component=COMPONENT_OF[phase],
            exposed_ns=exposed[phase],
            busy_ns=busy[phase],
            count=count[phase],
        )
        for phase in Phase
        if exposed[phase] or busy[phase]
    )


def stragglers(ranks: Iterable[RankBusy]) -> tuple[Straggler, ...]:
    """Per attempt and leaf that two ranks or more ran: the slowest rank beside the median."""
    grouped: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for item in ranks:
        if item.trainer.source is not Source.TRAINER:
            continue
        rank = -1 if item.trainer.rank is None else item.trainer.rank
        for phase, length in item.length.items():
            grouped.setdefault((item.attempt, PHASE_ORDER[phase]), []).append((length, rank, item.trainer.host))
    phases = list(Phase)
    return tuple(
        _straggler(attempt, phases[order], grouped[attempt, order])
        for attempt, order in sorted(grouped)
        if len(grouped[attempt, order]) > 1
    )


def _straggler(attempt: int, phase: Phase, ranks: Sequence[tuple[int, int, str]]) -> Straggler:
    slowest = max(ranks, key=lambda item: (item[0], -item[1]))
    return Straggler(
        attempt=attempt,
        phase=phase,
        ranks=len(ranks),
        median_ns=int(statistics.median_low([length for length, _, _ in ranks])),
        max_ns=slowest[0],
        slowest_rank=slowest[1],
        slowest_host=slowest[2],
    )


def attempt_reports(timeline: Timeline) -> tuple[AttemptReport, ...]:
    """Every attempt with its instants since first submission."""
    stepped: dict[tuple[int | None, Phase], int] = Counter()
    for piece in timeline.pieces:
        stepped[piece.attempt, piece.phase] += piece.length
    return tuple(_attempt_report(attempt, timeline.start, stepped) for attempt in timeline.attempts)


def _attempt_report(attempt: Attempt, origin: int, stepped: dict[tuple[int | None, Phase], int]) -> AttemptReport:
    bounds, loop, verdict = attempt.bounds, attempt.loop, attempt.verdict
    trainers = attempt.placed.trainers
    ranks = sorted({trainer.rank for trainer in trainers if trainer.rank is not None})
    return AttemptReport(
        number=attempt.number,
        start_ns=bounds.start - origin,
        end_ns=bounds.end - origin,
        submitted_ns=_since(bounds.submitted, origin),
        allocated_ns=_since(bounds.allocated, origin),
        launched_ns=_since(bounds.launched, origin),
        first_step_ns=None if loop is None else loop.join - origin,
        last_progress_ns=None if verdict.progress is None else verdict.progress - origin,
        released_ns=_since(bounds.released, origin),
        outcome=verdict.outcome,
        cause=verdict.cause,
        exit_codes=exit_codes(attempt.placed),
        devices=device_count(attempt),
        world_size=_world_size(attempt),
        ranks=tuple(ranks),
        missing_ranks=missing_ranks(attempt),
        hosts=tuple(sorted({trainer.host for trainer in trainers})),
        steps=0 if loop is None else len(loop.steps),
        productive_ns=stepped[attempt.number, Phase.STEP],
        replay_ns=stepped[attempt.number, Phase.REPLAY],
        start_cursor=None if loop is None else loop.steps.before[0],
        end_cursor=None if loop is None else loop.steps.after[-1],
        start_provenance=bounds.start_provenance,
        end_provenance=bounds.end_provenance,
    )


def _since(stamp: Stamp | None, origin: int) -> int | None:
    return None if stamp is None else stamp.ns - origin


def _world_size(attempt: Attempt) -> int | None:
    return max((t.world_size for t in attempt.placed.trainers if t.world_size is not None), default=None)


MOST_RANKS = 1 << 20


def missing_ranks(attempt: Attempt) -> tuple[int, ...]:
    """Ranks that the world size promises and no file shows."""
    seen = {trainer.rank for trainer in attempt.placed.trainers}
    size = _world_size(attempt) or 0
    return tuple(rank for rank in range(min(size, MOST_RANKS)) if rank not in seen)


def checkpoint_totals(timeline: Timeline, recoveries: Iterable[Recovery]) -> CheckpointTotals:
    """What the advice on the checkpoint interval needs (section 9)."""
    saves, in_loop = 0, 0
    durable: list[int] = []
    between: list[int] = []
    for attempt in timeline.attempts:
        stamps = attempt.placed.stamps
        dispatched = _earliest_by_step(stamps.get(Point.CHECKPOINT_DISPATCHED, []))
        done = _earliest_by_step(stamps.get(Point.CHECKPOINT_DURABLE, []))
        durable += [at - dispatched[step] for step, at in sorted(done.items()) if at >= dispatched.get(step, at + 1)]
        instants = sorted(dispatched.values())
        between += [later_ - earlier_ for earlier_, later_ in itertools.pairwise(instants)]
        if attempt.loop is None:
            continue
        spans = [s for s in attempt.loop.lead.spans if s.phase is Phase.CHECKPOINT_BLOCKING]
        saves += len(spans) or len(dispatched)
        in_loop += max(attempt.loop.end, attempt.verdict.progress or 0) - attempt.loop.join
    return CheckpointTotals(
        saves=saves,
        blocking_ns=sum(piece.length for piece in timeline.pieces if piece.phase is Phase.CHECKPOINT_BLOCKING),
        in_loop_ns=in_loop,
        losing_failures=sum(recovery.replayed_samples > 0 for recovery in recoveries),
        durable_ns=tuple(durable),
        interval_ns=int(statistics.median(between)) if between else None,
    )


def _earliest_by_step(stamps: Iterable[Stamp]) -> dict[int, int]:
    found: dict[int, int] = {}
    for stamp in stamps:
        step = stamp.fact.attrs.get("step")
        if type(step) is int:
            found[step] = min(stamp.ns, found.get(step, stamp.ns))
    return found


def training_metrics(timeline: Timeline) -> tuple[TrainingMetrics, ...]:
    """The trainer's metrics points, in order."""
    found = []
    for attempt in timeline.attempts:
        for stamp in attempt.placed.stamps.get(Point.METRICS, []):
            attrs = stamp.fact.attrs
            values = {name: float(value) for name, value in attrs.items() if _is_number(value) and name != "attempt"}
            scope = str(attrs.get("scope", ""))[:100]
            at = stamp.ns - timeline.start
            found.append(TrainingMetrics(at_ns=at, attempt=attempt.number, scope=scope, values=values))
    found.sort(key=lambda item: (item.at_ns, item.attempt or 0, item.scope, sorted(item.values.items())))
    return tuple(found)


def _is_number(value: object) -> bool:
    """A finite number: JSON knows neither NaN nor infinity, Python's reader lets both through."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def lost_not_replayed(timeline: Timeline, recoveries: Iterable[Recovery]) -> tuple[int, int]:
    """Samples and productive ns whose training is in no model. They stay productive (section 2)."""
    ranges = [recovery.lost_range for recovery in recoveries if recovery.lost_range is not None]
    time = 0
    for attempt in timeline.attempts:
        if attempt.loop is None or not ranges:
            continue
        steps = attempt.loop.steps
        for index in range(len(steps)):
            low = steps.after[index] if attempt.loop.replayed[index] < 0 else steps.before[index]
            low += max(0, attempt.loop.replayed[index])
            samples = steps.after[index] - steps.before[index]
            inside = sum(max(0, min(steps.after[index], high) - max(low, from_)) for from_, high in ranges)
            time += attempt.loop.net(index) * inside // samples if inside else 0
    return sum(high - low for low, high in ranges), max(0, time)


def flags(timeline: Timeline, recoveries: Sequence[Recovery]) -> tuple[str, ...]:
    """Things that a reader of the report must not miss."""
    found = []
    for recovery in recoveries:
        if not recovery.recovered:
            found.append(f"attempt {recovery.attempt.number}: nobody recovered from its failure")
    if timeline.concurrent_steps:
        found.append("two attempts stepped at once; their time counts once")
    if any(shift.clamped for shift in timeline.placement.shifts):
        found.append("no clock shift fits every cause and effect; instants were clamped")
    for attempt in timeline.attempts:
        if Point.RECOMPILE_LIMIT in attempt.placed.stamps:
            found.append(f"attempt {attempt.number}: the recompile limit was reached; later graphs ran uncompiled")
    return tuple(found)


def degraded(timeline: Timeline, log: EventLog) -> tuple[str, ...]:
    """One line per source or rank that is missing, so that nothing reads as healthy because nobody looked."""
    found = []
    sources = {process.identity.source for process in log.processes}
    if Source.LAUNCHER not in sources and Source.SCHEDULER not in sources:
        found.append("no launcher or scheduler events: queue time and exits are not known")
    for attempt in timeline.attempts:
        number = attempt.number
        if not attempt.placed.trainers and attempt.verdict.outcome is not JobState.LIVE:
            found.append(f"attempt {number}: no trainer events")
        missing = missing_ranks(attempt) if attempt.placed.trainers else ()
        if missing:
            some = ", ".join(str(rank) for rank in missing[:8]) + (", ..." if len(missing) > 8 else "")
            found.append(f"attempt {number}: no events of {len(missing)} ranks ({some})")
        if attempt.bounds.released is None and not attempt.bounds.open and Source.LAUNCHER in sources:
            found.append(f"attempt {number}: its release was not recorded; it ends at its last sign of life")
    if log.quality.missing_sequence or log.quality.lost_writes:
        count = log.quality.missing_sequence + log.quality.lost_writes
        found.append(f"{count} events never arrived: what they explained shows as unattributed or lost")
    return tuple(found)
