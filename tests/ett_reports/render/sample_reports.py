"""Reports made by hand, so that the outputs are tested without the reducer. Seconds in, nanoseconds out."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from ett_reports.events import COMPONENT_OF, L1, Cause, Component, Phase, Provenance, Source
from ett_reports.report import (
    AttemptReport,
    CheckpointTotals,
    ClockShift,
    Complement,
    Failure,
    JobReport,
    JobState,
    LogQuality,
    PhaseTotal,
    RefreshReport,
    Segment,
    Straggler,
    TaskReport,
    TaskTry,
    TrainingMetrics,
)

S = 1_000_000_000
START = 1_764_385_200 * S
Piece = tuple[L1, Phase, float, int | None]


def job_report(pieces: list[Piece], **changes: object) -> JobReport:
    """A job from (class, leaf, seconds, attempt) pieces, one after the other."""
    segments, at = [], 0
    for l1, phase, seconds, attempt in pieces:
        end = at + round(seconds * S)
        segments.append(
            Segment(
                start_ns=at,
                end_ns=end,
                l1=l1,
                l2=COMPONENT_OF[phase],
                phase=phase,
                attempt=attempt,
                rank=None if attempt is None else 0,
                provenance=Provenance.MEASURED,
            )
        )
        at = end
    fields = _totals(segments, at) | _attempts(segments) | changes
    return JobReport(**fields)  # type: ignore[arg-type]


def _totals(segments: list[Segment], wall: int) -> dict[str, object]:
    l1 = dict.fromkeys(L1, 0)
    l2 = dict.fromkeys(Component, 0)
    cross: dict[L1, dict[Component, int]] = {level: dict.fromkeys(Component, 0) for level in L1}
    leaves: dict[Phase, list[int]] = defaultdict(list)
    for segment in segments:
        l1[segment.l1] += segment.duration_ns
        l2[segment.l2] += segment.duration_ns
        cross[segment.l1][segment.l2] += segment.duration_ns
        leaves[segment.phase].append(segment.duration_ns)
    productive = l1[L1.PRODUCTIVE]
    return {
        "job": "completejourney/scheduled__2026-11-28",
        "state": JobState.COMPLETED,
        "submitted_unix_ns": START,
        "wall_ns": wall,
        "held_ns": wall - l2[Component.SCHEDULING],
        "productive_ns": productive,
        "productive_held_ns": productive,
        "l1": l1,
        "l2": l2,
        "cross": cross,
        "phases": tuple(
            PhaseTotal(
                phase=phase,
                component=COMPONENT_OF[phase],
                exposed_ns=sum(spent),
                busy_ns=sum(spent) + (40 * S if phase is Phase.PREPROCESSING else 0),
                count=len(spent),
            )
            for phase, spent in sorted(leaves.items(), key=lambda item: list(Phase).index(item[0]))
        ),
        "failures": (),
        "nof": 0,
        "segments": tuple(segments),
        "device_lost_ns": 2 * (wall - productive),
        "device_held_ns": 2 * wall,
        "provenance": {Provenance.MEASURED: wall, Provenance.INFERRED: 0, Provenance.ESTIMATED: 0},
        "clock_shifts": (),
        "stragglers": (),
        "quality": LogQuality(files=4, processes=3, events=1234),
        "sources": (Source.TRAINER, Source.LAUNCHER, Source.AIRFLOW),
        "degraded": (),
        "complement": Complement(
            tts_ns=l1[L1.TTS],
            nof=0,
            mean_ttr_ns=None,
            sum_ttr_ns=0,
            value=Fraction(wall - l1[L1.TTS], wall) if wall else None,
            in_loop_ns=l1[L1.IN_LOOP],
            shutdown_ns=l1[L1.SHUTDOWN],
            lost_ns=0,
            detect_ns=0,
            explanation="The second line of Eq. 1 leaves out in-loop overhead and shutdown.",
        ),
        "checkpoints": CheckpointTotals(
            saves=4,
            blocking_ns=6 * S,
            in_loop_ns=productive,
            losing_failures=0,
            durable_ns=(3 * S,),
            interval_ns=15 * S,
        ),
        "metrics": (),
        "planned_samples": 400_000,
        "high_water_mark": 400_000,
        "lost_not_replayed_samples": 0,
        "lost_not_replayed_ns": 0,
        "flags": (),
        "reference_clock": Source.AIRFLOW,
    }


def _attempts(segments: list[Segment]) -> dict[str, object]:
    numbers = sorted({segment.attempt for segment in segments if segment.attempt is not None})
    reports = []
    for number in numbers:
        own = [segment for segment in segments if segment.attempt == number]
        steps = [segment for segment in own if segment.phase is Phase.STEP]
        last = number == numbers[-1]
        reports.append(
            AttemptReport(
                number=number,
                start_ns=own[0].start_ns,
                end_ns=own[-1].end_ns,
                submitted_ns=own[0].start_ns,
                allocated_ns=own[0].start_ns,
                launched_ns=own[0].start_ns,
                first_step_ns=steps[0].start_ns if steps else None,
                last_progress_ns=steps[-1].end_ns if steps else None,
                released_ns=own[-1].end_ns,
                outcome=JobState.COMPLETED if last else JobState.FAILED,
                cause=None if last else Cause.INFRASTRUCTURE,
                exit_codes=(0, 0) if last else (-9, 1),
                devices=2,
                world_size=2,
                ranks=(0, 1),
                missing_ranks=(),
                hosts=("node-a",),
                steps=len(steps) * 100,
                productive_ns=sum(segment.duration_ns for segment in steps),
                replay_ns=sum(segment.duration_ns for segment in own if segment.phase is Phase.REPLAY),
                start_cursor=0,
                end_cursor=400_000,
                start_provenance=Provenance.MEASURED,
                end_provenance=Provenance.MEASURED,
            )
        )
    return {"attempts": tuple(reports)}


def quiet_job() -> JobReport:
    """One attempt, nothing went wrong."""
    return job_report(
        [
            (L1.TTS, Phase.QUEUE_WAIT, 3, 1),
            (L1.TTS, Phase.HARDWARE_SETUP, 1.2, 1),
            (L1.TTS, Phase.LAUNCHER_INIT, 6.4, 1),
            (L1.TTS, Phase.PROCESS_GROUP, 0.8, 1),
            (L1.TTS, Phase.TRAIN_MODULE, 2.1, 1),
            (L1.TTS, Phase.COMPILE, 24.7, 1),
            (L1.TTS, Phase.FIRST_BATCH, 0.3, 1),
            (L1.PRODUCTIVE, Phase.STEP, 81.5, 1),
            (L1.IN_LOOP, Phase.CHECKPOINT_BLOCKING, 0.4, 1),
            (L1.PRODUCTIVE, Phase.STEP, 30.1, 1),
            (L1.SHUTDOWN, Phase.FINAL_CHECKPOINT, 2.6, 1),
            (L1.SHUTDOWN, Phase.TEARDOWN, 1.9, 1),
            (L1.SHUTDOWN, Phase.UNATTRIBUTED, 0.6, None),
        ]
    )


def failed_once_job(message: str = "rank 1 was killed by signal 9") -> JobReport:
    """Two attempts; the first is killed, the second replays and completes."""
    steps: list[Piece] = []
    for _ in range(40):
        steps += [(L1.PRODUCTIVE, Phase.STEP, 6.9, 1), (L1.IN_LOOP, Phase.DATA_STALL, 0.1, 1)]
    report = job_report(
        [
            (L1.TTS, Phase.QUEUE_WAIT, 30, 1),
            (L1.TTS, Phase.LAUNCHER_INIT, 8, 1),
            (L1.TTS, Phase.TRAIN_MODULE, 12, 1),
            (L1.TTS, Phase.COMPILE, 64, 1),
            *steps,
            (L1.RECOVERY, Phase.LOST_STEP, 4, 1),
            (L1.RECOVERY, Phase.HANG, 6, 1),
            (L1.RECOVERY, Phase.TEARDOWN, 5, 1),
            (L1.RECOVERY, Phase.RETRY_WAIT, 20, None),
            (L1.RECOVERY, Phase.QUEUE_WAIT, 10, 2),
            (L1.RECOVERY, Phase.LAUNCHER_INIT, 8, 2),
            (L1.RECOVERY, Phase.CHECKPOINT_RESTORE, 3, 2),
            (L1.RECOVERY, Phase.COMPILE, 14, 2),
            (L1.RECOVERY, Phase.REPLAY, 31, 2),
            (L1.PRODUCTIVE, Phase.STEP, 220, 2),
            (L1.SHUTDOWN, Phase.FINAL_CHECKPOINT, 6, 2),
            (L1.SHUTDOWN, Phase.TEARDOWN, 2, 2),
        ]
    )
    start = next(s.start_ns for s in report.segments if s.phase is Phase.LOST_STEP)
    failure = Failure(
        attempt=1,
        cause=Cause.INFRASTRUCTURE,
        message=message,
        start_ns=start,
        failure_ns=start + 4 * S,
        detected_ns=start + 10 * S,
        end_ns=start + 101 * S,
        lost_ns=4 * S,
        detect_ns=6 * S,
        ttr_ns=91 * S,
        recovered=True,
        replayed_samples=12_800,
        lost_not_replayed_samples=0,
        provenance=Provenance.INFERRED,
    )
    metrics = (
        TrainingMetrics(
            at_ns=60 * S, attempt=1, scope="progressive", values={"ne": 0.9812, "auc": 0.6911, "rows": 51_200}
        ),
        TrainingMetrics(at_ns=600 * S, attempt=2, scope="train", values={"ne": 0.9433, "auc": 0.7263, "rows": 400_000}),
        TrainingMetrics(
            at_ns=620 * S, attempt=2, scope="holdout", values={"ne": 0.9518, "auc": 0.7207, "rows": 21_034}
        ),
    )
    return _changed(
        report,
        failures=(failure,),
        nof=1,
        metrics=metrics,
        provenance={Provenance.MEASURED: report.wall_ns - 10 * S, Provenance.INFERRED: 10 * S, Provenance.ESTIMATED: 0},
        complement=_changed(
            report.complement,
            nof=1,
            mean_ttr_ns=Fraction(91 * S),
            sum_ttr_ns=91 * S,
            lost_ns=4 * S,
            detect_ns=6 * S,
            value=Fraction(report.wall_ns - report.l1[L1.TTS] - 91 * S, report.wall_ns),
        ),
        quality=LogQuality(files=9, processes=5, events=8123, torn_lines=1, flight_windows=2),
        clock_shifts=(
            ClockShift(
                host="node-b",
                attempt=2,
                source=Source.TRAINER,
                shift_ns=200 * S,
                low_ns=199 * S,
                high_ns=204 * S,
                clamped=False,
            ),
        ),
        stragglers=(
            Straggler(
                attempt=1,
                phase=Phase.TRAIN_MODULE,
                ranks=2,
                median_ns=9 * S,
                max_ns=12 * S,
                slowest_rank=1,
                slowest_host="node-a",
            ),
        ),
    )


def busy_job(attempts: int = 20) -> JobReport:
    """Many attempts, all but the last preempted."""
    pieces: list[Piece] = [(L1.TTS, Phase.QUEUE_WAIT, 120, 1), (L1.TTS, Phase.COMPILE, 254, 1)]
    failures = []
    for number in range(1, attempts + 1):
        if number > 1:
            pieces += [
                (L1.RECOVERY, Phase.RETRY_WAIT, 12, None),
                (L1.RECOVERY, Phase.QUEUE_WAIT, 40 + 17 * (number % 5), number),
                (L1.RECOVERY, Phase.LAUNCHER_INIT, 9, number),
                (L1.RECOVERY, Phase.CHECKPOINT_RESTORE, 14, number),
                (L1.RECOVERY, Phase.COMPILE, 31, number),
                (L1.RECOVERY, Phase.REPLAY, 20, number),
            ]
        for _ in range(60):
            pieces += [
                (L1.PRODUCTIVE, Phase.STEP, 9 + number % 3, number),
                (L1.IN_LOOP, Phase.CHECKPOINT_BLOCKING, 0.7, number),
                (L1.IN_LOOP, Phase.DATA_STALL, 0.2, number),
            ]
        if number < attempts:
            start = sum(round(piece[2] * S) for piece in pieces)
            pieces.append((L1.RECOVERY, Phase.TEARDOWN, 11, number))
            failures.append(
                Failure(
                    attempt=number,
                    cause=Cause.PREEMPTION if number % 4 else Cause.HANG,
                    message="",
                    start_ns=start,
                    failure_ns=start,
                    detected_ns=start,
                    end_ns=start + 180 * S,
                    lost_ns=0,
                    detect_ns=0,
                    ttr_ns=180 * S,
                    recovered=True,
                    replayed_samples=1000,
                    lost_not_replayed_samples=0,
                    provenance=Provenance.MEASURED,
                )
            )
    pieces.append((L1.SHUTDOWN, Phase.FINAL_CHECKPOINT, 60, attempts))
    return job_report(pieces, failures=tuple(failures), nof=len(failures))


def refresh_report() -> RefreshReport:
    """The refresh around `failed_once_job`: five tasks, one of them tried twice."""

    def one(number: int, state: str, ready: float, code: float, end: float, **more: float) -> TaskTry:
        spent = round((end - code) * S) - round(more.get("deferred", 0) * S)
        return TaskTry(
            number=number,
            state=state,
            ready_ns=round(ready * S),
            code_start_ns=round(code * S),
            end_ns=round(end * S),
            queue_ns=round((code - ready) * S),
            run_ns=spent,
            deferred_ns=round(more.get("deferred", 0) * S),
            retry_wait_ns=round(more.get("retry", 0) * S),
            wasted_ns=0 if state == "success" else round((end - code) * S),
            overridden=(),
            provenance=Provenance.MEASURED,
        )

    def task(name: str, tries: tuple[TaskTry, ...], productive: int | None = None) -> TaskReport:
        start, end = tries[0].ready_ns, tries[-1].end_ns or 0
        return TaskReport(
            task=name,
            start_ns=start,
            end_ns=end,
            tries=tries,
            holds_devices=productive is not None,
            productive_ns=productive,
            share=(end - start) / (812 * S),
        )

    return RefreshReport(
        job="completejourney/scheduled__2026-11-28",
        run_type="scheduled",
        queued_unix_ns=START - 13 * S,
        wall_ns=812 * S,
        state="success",
        tasks=(
            task("check_schema", (one(1, "success", 0, 2, 10),)),
            task("launch", (one(1, "success", 10, 12, 44, deferred=30),), 0),
            task(
                "train",
                (
                    one(1, "failed", 44, 46, 404, deferred=350),
                    one(2, "success", 434, 436, 740, deferred=299, retry=30),
                ),
                496 * S,
            ),
            task("publish", (one(1, "success", 740, 742, 780),)),
            task("ett", (one(1, "success", 780, 781, 800),)),
            task("report", (one(1, "success", 800, 801, 812),)),
        ),
        freshness_ns=12_000 * S,
        window_end_unix_ns=START - 11_000 * S,
        snapshot_live_unix_ns=START + 1000 * S,
        snapshot_version="scheduled__2026-11-28",
        degraded=(),
    )


def _changed(report, **changes):  # type: ignore[no-untyped-def]
    import dataclasses

    return dataclasses.replace(report, **changes)


def hostile_job(text: str) -> JobReport:
    """Every free text of the report is `text`."""
    report = failed_once_job(text)
    return _changed(
        report,
        job=f"{text}/{text}",
        degraded=(text,),
        flags=(text,),
        metrics=tuple(_changed(one, scope=text, values={text: 1.0}) for one in report.metrics),
        attempts=tuple(_changed(one, hosts=(text,)) for one in report.attempts),
        clock_shifts=tuple(_changed(one, host=text) for one in report.clock_shifts),
        stragglers=tuple(_changed(one, slowest_host=text) for one in report.stragglers),
        complement=_changed(report.complement, explanation=text),
    )
