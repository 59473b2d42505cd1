"""Levels 1 and 2: a timeline -> the job's report (sections 2 to 4). `reduce` is the metric."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from ett_reports.events import COMPONENT_OF, L1, SHUTDOWN_PHASES, Component, Phase, Provenance
from ett_reports.intervals import Coverage, Piece, moved
from ett_reports.log import EventLog
from ett_reports.recoveries import Recovery, find_recoveries
from ett_reports.report import Complement, Failure, JobReport, JobState, LogQuality, Segment
from ett_reports.summaries import (
    attempt_reports,
    busy_ranks,
    checkpoint_totals,
    degraded,
    devices,
    flags,
    lost_not_replayed,
    phase_totals,
    stragglers,
    training_metrics,
)
from ett_reports.timeline import Timeline, build_timeline


def reduce(log: EventLog, now_ns: int | None = None) -> JobReport:
    """The job's report: a pure function of the log, and for a live job of now_ns (unix ns; default: the last event).

    Raises TimelineError when the log knows of no attempt.
    """
    timeline = build_timeline(log, now_ns)
    return report_of(timeline, log)


def report_of(timeline: Timeline, log: EventLog) -> JobReport:
    """The report of a timeline that was built already."""
    productive = Coverage((p.start, p.end) for p in timeline.pieces if p.phase is Phase.STEP)
    recoveries = find_recoveries(timeline, productive)
    segments = classify(timeline, productive, recoveries)
    cross = {level: dict.fromkeys(Component, 0) for level in L1}
    provenance = dict.fromkeys(Provenance, 0)
    for segment in segments:
        cross[segment.l1][segment.l2] += segment.duration_ns
        provenance[segment.provenance] += segment.duration_ns
    l1 = {level: sum(row.values()) for level, row in cross.items()}
    held = devices(timeline, productive)
    ranks = busy_ranks(timeline)
    failures = tuple(_failure(recovery, timeline) for recovery in recoveries)
    lost_samples, lost_ns = lost_not_replayed(timeline, recoveries)
    return JobReport(
        job=log.job,
        state=timeline.state,
        submitted_unix_ns=timeline.start,
        wall_ns=timeline.end - timeline.start,
        held_ns=held.held_ns,
        productive_ns=l1[L1.PRODUCTIVE],
        productive_held_ns=held.productive_held_ns,
        l1=l1,
        l2={component: sum(row[component] for row in cross.values()) for component in Component},
        cross=cross,
        phases=phase_totals(timeline, ranks),
        failures=failures,
        nof=len(failures),
        attempts=attempt_reports(timeline),
        segments=tuple(segments),
        device_lost_ns=held.lost_ns,
        device_held_ns=held.device_ns,
        provenance=provenance,
        clock_shifts=timeline.placement.shifts,
        stragglers=stragglers(ranks),
        quality=_quality(timeline, log.quality),
        sources=tuple(sorted({process.identity.source for process in log.processes})),
        degraded=degraded(timeline, log),
        complement=_complement(l1, failures, timeline.end - timeline.start),
        checkpoints=checkpoint_totals(timeline, recoveries),
        metrics=training_metrics(timeline),
        planned_samples=timeline.planned_samples,
        high_water_mark=timeline.high_water_mark,
        lost_not_replayed_samples=lost_samples,
        lost_not_replayed_ns=lost_ns,
        flags=flags(timeline, recoveries),
        reference_clock=timeline.placement.reference,
    )


def classify(timeline: Timeline, productive: Coverage, recoveries: Sequence[Recovery]) -> list[Segment]:
    """Cut the pieces where level 1 changes, and label them. Instants become ns since first submission."""
    first = productive.next_from(timeline.start)
    tts_end = min(
        [timeline.end if first is None else first] + [r.start for r in recoveries if first is None or r.start < first]
    )
    last = productive.ends[-1] if productive.ends else timeline.end
    in_shutdown = last if _shutdown_has_begun(timeline, last) else timeline.end
    starts = [recovery.start for recovery in recoveries]
    cuts = sorted({tts_end, last, in_shutdown, *starts, *(recovery.end for recovery in recoveries)})

    def level(start: int) -> L1:
        index = bisect_right(starts, start) - 1
        # Of several that start together only the last has any length.
        if index >= 0 and start < recoveries[index].end:
            return L1.RECOVERY
        if first is None or start < first:
            return L1.TTS
        return L1.SHUTDOWN if start >= in_shutdown else L1.IN_LOOP

    segments: list[Segment] = []
    for piece in timeline.pieces:
        for part in _cut(piece, cuts):
            l1 = L1.PRODUCTIVE if part.phase is Phase.STEP else level(part.start)
            _extend(segments, _segment(part, l1, timeline.start))
    return segments


def _shutdown_has_begun(timeline: Timeline, last: int) -> bool:
    """A live job is in shutdown only once the stream is consumed or a shutdown phase has opened."""
    if timeline.state is not JobState.LIVE or timeline.consumed:
        return True
    trainers = timeline.attempts[-1].placed.trainers
    return any(s.phase in SHUTDOWN_PHASES and s.start_ns >= last for trainer in trainers for s in trainer.spans)


def _cut(piece: Piece, cuts: Sequence[int]) -> list[Piece]:
    index = bisect_right(cuts, piece.start)
    parts = []
    while index < len(cuts) and cuts[index] < piece.end:
        parts.append(moved(piece, piece.start, cuts[index]))
        piece = moved(piece, cuts[index], piece.end)
        index += 1
    return [*parts, piece]


def _segment(piece: Piece, level: L1, origin: int) -> Segment:
    return Segment(
        start_ns=piece.start - origin,
        end_ns=piece.end - origin,
        l1=level,
        l2=COMPONENT_OF[piece.phase],
        phase=piece.phase,
        attempt=piece.attempt,
        rank=piece.rank,
        provenance=piece.provenance,
    )


def _extend(segments: list[Segment], segment: Segment) -> None:
    last = segments[-1] if segments else None
    if last is not None and replace(last, start_ns=segment.start_ns, end_ns=segment.end_ns) == segment:
        segments[-1] = replace(last, end_ns=segment.end_ns)
    else:
        segments.append(segment)


def _failure(recovery: Recovery, timeline: Timeline) -> Failure:
    verdict = recovery.attempt.verdict
    assert verdict.cause is not None
    origin = timeline.start
    return Failure(
        attempt=recovery.attempt.number,
        cause=verdict.cause,
        message=verdict.message,
        start_ns=recovery.start - origin,
        failure_ns=recovery.failure - origin,
        detected_ns=recovery.detected - origin,
        end_ns=recovery.end - origin,
        lost_ns=recovery.failure - recovery.start,
        detect_ns=recovery.detected - recovery.failure,
        ttr_ns=recovery.end - recovery.detected,
        recovered=recovery.recovered,
        replayed_samples=recovery.replayed_samples,
        lost_not_replayed_samples=recovery.lost_not_replayed_samples,
        provenance=verdict.provenance,
    )


def _quality(timeline: Timeline, quality: LogQuality) -> LogQuality:
    return replace(
        quality,
        dropped_cycles=sum(time.dropped_cycles for time in timeline.times),
        clamped_clocks=sum(shift.clamped for shift in timeline.placement.shifts),
        clock_steps=timeline.placement.clock_steps,
        concurrent_steps=timeline.concurrent_steps,
    )


def _complement(l1: dict[L1, int], failures: Sequence[Failure], wall: int) -> Complement:
    tts = l1[L1.TTS]
    sum_ttr = sum(failure.ttr_ns for failure in failures)
    lost = sum(failure.lost_ns for failure in failures)
    detect = sum(failure.detect_ns for failure in failures)
    left_out = l1[L1.IN_LOOP] + l1[L1.SHUTDOWN] + lost + detect
    value = Fraction(wall - tts - sum_ttr, wall) if wall else None
    share = f"{100 * left_out / wall:.2f} points" if wall else "n/a"
    explanation = (
        f"1 - (TTS + NoF * TTR) / wall leaves out {left_out / 1e9:.1f} s ({share}): in-loop overhead "
        f"{l1[L1.IN_LOOP] / 1e9:.1f} s, shutdown {l1[L1.SHUTDOWN] / 1e9:.1f} s, lost time {lost / 1e9:.1f} s and time "
        f"to detect {detect / 1e9:.1f} s. With these folded in, the two lines of Eq. 1 agree."
    )
    return Complement(
        tts_ns=tts,
        nof=len(failures),
        mean_ttr_ns=Fraction(sum_ttr, len(failures)) if failures else None,
        sum_ttr_ns=sum_ttr,
        value=value,
        in_loop_ns=l1[L1.IN_LOOP],
        shutdown_ns=l1[L1.SHUTDOWN],
        lost_ns=lost,
        detect_ns=detect,
        explanation=explanation,
    )
