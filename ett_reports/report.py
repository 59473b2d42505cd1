"""The results as frozen values: a job's report and a refresh's report, exact and versioned."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from ett_reports.codec import CodecError, decode, encode
from ett_reports.events import L1, Cause, Component, Phase, Provenance, Source

METRIC_VERSION = 1
REPORT_VERSION = 1


class ReportError(ValueError):
    """A document that is not a report of a version that we can read."""


class JobState(StrEnum):
    """How the job stands at the end of its log."""

    LIVE = "live"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One stretch of wall time with one class and one leaf. Instants are ns since the job's first submission.

    attempt, rank   whose span owns it; None where no process does (retry wait, unexplained time)
    provenance      the worse of its two boundaries
    """

    start_ns: int
    end_ns: int
    l1: L1
    l2: Component
    phase: Phase
    attempt: int | None
    rank: int | None
    provenance: Provenance

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class PhaseTotal:
    """One leaf of level 2. exposed_ns sums to wall time over all leaves; busy_ns is how long its spans ran.

    busy_ns counts, per attempt, the union over one rank's spans, and the rank where that is longest.
    """

    phase: Phase
    component: Component
    exposed_ns: int
    busy_ns: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An attempt that ended without completing the job, and the recovery after it (section 3).

    start_ns = last sign of progress <= failure_ns <= detected_ns <= end_ns, since first submission.
    lost, detect and ttr are exact parts of end_ns - start_ns; each lies within the recovery.
    """

    attempt: int
    cause: Cause
    message: str
    start_ns: int
    failure_ns: int
    detected_ns: int
    end_ns: int
    lost_ns: int
    detect_ns: int
    ttr_ns: int
    recovered: bool
    replayed_samples: int
    lost_not_replayed_samples: int
    provenance: Provenance

    @property
    def recovery_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class AttemptReport:
    """One incarnation of the job. Instants are ns since first submission; None where no source told."""

    number: int
    start_ns: int
    end_ns: int
    submitted_ns: int | None
    allocated_ns: int | None
    launched_ns: int | None
    first_step_ns: int | None
    last_progress_ns: int | None
    released_ns: int | None
    outcome: JobState
    cause: Cause | None
    exit_codes: tuple[int, ...]
    devices: int | None
    world_size: int | None
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: int
    productive_ns: int
    replay_ns: int
    start_cursor: int | None
    end_cursor: int | None
    start_provenance: Provenance
    end_provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class ClockShift:
    """How far a host's clock was moved, for one attempt, so that causes precede effects (section 6).

    low_ns..high_ns: every shift that causality allows; None = unbounded on that side. clamped: none fits.
    """

    host: str
    attempt: int | None
    source: Source
    shift_ns: int
    low_ns: int | None
    high_ns: int | None
    clamped: bool

    @property
    def width_ns(self) -> int | None:
        return None if self.low_ns is None or self.high_ns is None else self.high_ns - self.low_ns


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Per phase and attempt: the slowest rank beside the median rank."""

    attempt: int
    phase: Phase
    ranks: int
    median_ns: int
    max_ns: int
    slowest_rank: int
    slowest_host: str

    @property
    def excess_ns(self) -> int:
        return self.max_ns - self.median_ns


@dataclass(frozen=True, kw_only=True)
class LogQuality:
    """What the reader met. Everything but events, files and processes is 0 for a clean log."""

    files: int = 0
    processes: int = 0
    events: int = 0
    torn_lines: int = 0
    invalid_events: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    unknown_kinds: int = 0
    unknown_points: int = 0
    unknown_phases: int = 0
    other_version: int = 0
    missing_sequence: int = 0
    lost_writes: int = 0
    flight_windows: int = 0
    dropped_cycles: int = 0
    clamped_clocks: int = 0
    clock_steps: int = 0
    concurrent_steps: int = 0
    unreadable_files: int = 0


@dataclass(frozen=True, kw_only=True)
class Complement:
    """The second line of Eq. 1: 1 - (TTS + NoF * TTR) / wall, and what makes it differ from the first line.

    exact = 1 - (tts + sum of ttr + left out) / wall, where left out = in_loop + shutdown + lost + detect.
    """

    tts_ns: int
    nof: int
    mean_ttr_ns: Fraction | None
    sum_ttr_ns: int
    value: Fraction | None
    in_loop_ns: int
    shutdown_ns: int
    lost_ns: int
    detect_ns: int
    explanation: str


@dataclass(frozen=True, kw_only=True)
class CheckpointTotals:
    """What section 9 needs.

    blocking_ns     in-loop time blocked by saves (exposed), over `saves` saves
    in_loop_ns      T: from the first step of each attempt to its last sign of progress
    losing_failures F: failures that lost unsaved progress
    durable_ns      per durable save, dispatch -> durable
    interval_ns     median time between two dispatched saves of one attempt; None with fewer than two
    """

    saves: int
    blocking_ns: int
    in_loop_ns: int
    losing_failures: int
    durable_ns: tuple[int, ...]
    interval_ns: int | None


@dataclass(frozen=True, kw_only=True)
class TrainingMetrics:
    """One metrics point of the trainer. at_ns since first submission; cursor = high-water mark then."""

    at_ns: int
    attempt: int | None
    scope: str
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """One job: the GPU work of one refresh run (section 1). Durations are exact nanoseconds.

    submitted_unix_ns   t = 0 of every instant in the report, on the reference clock
    wall_ns             = sum of l1 = sum of l2 = sum of cross = sum of provenance = sum of segments
    nof                 attempts that ended without completing the job
    device_lost_ns      allocated devices integrated over non-productive time; None if no source told of devices
    degraded            one line per source or rank that is missing; empty = nothing is missing
    """

    metric_version: int = METRIC_VERSION
    job: str
    state: JobState
    submitted_unix_ns: int
    wall_ns: int
    held_ns: int
    productive_ns: int
    productive_held_ns: int
    l1: dict[L1, int]
    l2: dict[Component, int]
    cross: dict[L1, dict[Component, int]]
    phases: tuple[PhaseTotal, ...]
    failures: tuple[Failure, ...]
    nof: int
    attempts: tuple[AttemptReport, ...]
    segments: tuple[Segment, ...]
    device_lost_ns: int | None
    device_held_ns: int | None
    provenance: dict[Provenance, int]
    clock_shifts: tuple[ClockShift, ...]
    stragglers: tuple[Straggler, ...]
    quality: LogQuality
    sources: tuple[Source, ...]
    degraded: tuple[str, ...]
    complement: Complement
    checkpoints: CheckpointTotals
    metrics: tuple[TrainingMetrics, ...]
    planned_samples: int | None
    high_water_mark: int | None
    lost_not_replayed_samples: int
    lost_not_replayed_ns: int
    flags: tuple[str, ...]
    reference_clock: Source | None

    @property
    def ett_exact(self) -> Fraction | None:
        """Productive time / wall time; None (n/a) with zero wall time."""
        return Fraction(self.productive_ns, self.wall_ns) if self.wall_ns else None

    @property
    def ett(self) -> float | None:
        """ETT as a share of 1."""
        return _float(self.ett_exact)

    @property
    def held_ett(self) -> float | None:
        """Productive time while a device was held / held time; None with zero held time."""
        return self.productive_held_ns / self.held_ns if self.held_ns else None

    @property
    def mean_ttr_ns(self) -> Fraction | None:
        """Mean over all failures, so that NoF * TTR is their sum."""
        return self.complement.mean_ttr_ns

    @property
    def mean_recovered_ttr_ns(self) -> Fraction | None:
        """Mean over the failures that somebody recovered from."""
        parts = [failure.ttr_ns for failure in self.failures if failure.recovered]
        return Fraction(sum(parts), len(parts)) if parts else None

    @property
    def gpu_hours_lost(self) -> float | None:
        return None if self.device_lost_ns is None else self.device_lost_ns / 3.6e12

    def exposed(self, phase: Phase) -> int:
        """Exposed ns of one leaf."""
        return next((total.exposed_ns for total in self.phases if total.phase is phase), 0)

    def busy(self, phase: Phase) -> int:
        """Busy ns of one leaf."""
        return next((total.busy_ns for total in self.phases if total.phase is phase), 0)


@dataclass(frozen=True, kw_only=True)
class TaskTry:
    """One try of one task (section 12). Instants are ns since the refresh was queued; durations ns.

    queue_ns     ready -> the task's code runs
    run_ns       code runs, less deferred
    deferred_ns  between a deferral and its resume
    retry_wait_ns  end of the try before -> ready
    wasted_ns    all of a try that failed, from its code start to its end
    overridden   which of Airflow's own stamps were replaced by the operator's
    """

    number: int
    state: str
    ready_ns: int
    code_start_ns: int | None
    end_ns: int | None
    queue_ns: int
    run_ns: int
    deferred_ns: int
    retry_wait_ns: int
    wasted_ns: int
    overridden: tuple[str, ...]
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """One task of the refresh. components: the job's L2 within the task's interval, for a task that holds devices."""

    task: str
    start_ns: int
    end_ns: int
    tries: tuple[TaskTry, ...]
    holds_devices: bool
    productive_ns: int | None
    components: dict[Component, int] = field(default_factory=dict)
    share: float | None = None

    @property
    def interval_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def ett(self) -> float | None:
        """Job productive time within the task's interval / the interval; None for a task that holds no devices."""
        if self.productive_ns is None or not self.interval_ns:
            return None
        return self.productive_ns / self.interval_ns


@dataclass(frozen=True, kw_only=True)
class RefreshReport:
    """A refresh: a run of the DAG, from being queued to the end of its report (section 12)."""

    job: str
    run_type: str | None
    queued_unix_ns: int
    wall_ns: int
    state: str
    tasks: tuple[TaskReport, ...]
    freshness_ns: int | None
    window_end_unix_ns: int | None
    snapshot_live_unix_ns: int | None
    snapshot_version: str | None
    degraded: tuple[str, ...]

    def task(self, name: str) -> TaskReport | None:
        return next((task for task in self.tasks if task.task == name), None)


def to_json(report: JobReport | RefreshReport) -> dict[str, Any]:
    """The versioned document of a report. Ratios that need no recomputing stand beside the exact integers."""
    kind = "job_report" if isinstance(report, JobReport) else "refresh_report"
    document: dict[str, Any] = {"kind": kind, "version": REPORT_VERSION}
    if isinstance(report, JobReport):
        document["ett"] = report.ett
        document["held_ett"] = report.held_ett
        document["gpu_hours_lost"] = report.gpu_hours_lost
    return document | encode(report)


def dumps(report: JobReport | RefreshReport) -> str:
    return json.dumps(to_json(report), indent=1)


def from_json(document: Any) -> JobReport | RefreshReport:
    """Read what `to_json` wrote. Raises ReportError for another kind or version, or a document that does not fit."""
    if not isinstance(document, dict) or document.get("kind") not in ("job_report", "refresh_report"):
        raise ReportError("not a report: expected an object with kind 'job_report' or 'refresh_report'")
    if document.get("version") != REPORT_VERSION:
        raise ReportError(
            f"report version {document.get('version')!r}, this program reads {REPORT_VERSION}: "
            "reduce the event log again with `python -m ett_reports run EVENTS --json`"
        )
    try:
        if document["kind"] == "job_report":
            return decode(JobReport, document)
        return decode(RefreshReport, document)
    except CodecError as error:
        raise ReportError(f"not a {document['kind']}: {error}") from error


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
