"""Service levels: owners, budgets, and pure detectors over a frozen snapshot of one run (paper V-D)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ett_reports.events import Component, Phase, Source
from ett_reports.report import AttemptReport, JobReport, JobState, RefreshReport

UNATTRIBUTED_SHARE = 0.05
STRAGGLER_SHARE = 0.05
CRASH_LOOP = 3


class PolicyError(ValueError):
    """Owners or service levels that cannot be used; the message names the entry and what it may be."""


class Owned(StrEnum):
    """What has an owner and a service level: the components of Table II, the residual, and the tasks around the job."""

    SCHEDULING = "scheduling"
    TRAINER_INIT = "trainer_init"
    PT2_COMPILE = "pt2_compile"
    EFFECTIVE_TRAINING = "effective_training"
    WASTED_TRAINING = "wasted_training"
    SHUTDOWN = "shutdown"
    UNATTRIBUTED = "unattributed"
    DATA = "data"
    PUBLISHING = "publishing"


TITLE: dict[Owned, str] = {
    Owned.SCHEDULING: "Scheduling",
    Owned.TRAINER_INIT: "Trainer initialization",
    Owned.PT2_COMPILE: "PT2 compilation",
    Owned.EFFECTIVE_TRAINING: "Effective training",
    Owned.WASTED_TRAINING: "Wasted training",
    Owned.SHUTDOWN: "Shutdown",
    Owned.UNATTRIBUTED: "Unattributed",
    Owned.DATA: "Data check",
    Owned.PUBLISHING: "Publishing",
}
"""The names that readers see (Table II)."""

TASK_OF: dict[Owned, str] = {Owned.DATA: "check_schema", Owned.PUBLISHING: "publish"}
"""Owned by the refresh rather than the job: judged on the task's interval, as a share of the refresh."""


class Health(StrEnum):
    """How a service level stands. Only `healthy` says that all is well, and only with every source at hand."""

    HEALTHY = "healthy"
    BREACHED = "breached"
    DEGRADED = "degraded"  # a source is missing that could have shown a breach
    PENDING = "pending"  # over its share so far, but the job is live
    UNSET = "unset"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The team that answers for a component."""

    team: str
    contact: str | None = None

    @property
    def label(self) -> str:
        return self.team if self.contact is None else f"{self.team} ({self.contact})"


@dataclass(frozen=True, kw_only=True)
class ServiceLevel:
    """A budget: a share of wall time (0..1), or seconds.

    For effective_training a share is the least that is asked for, an ETT% goal; for all others it is the most.
    """

    share: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.seconds is None):
            raise PolicyError("a service level is either {'share': 0..1} of wall time or {'seconds': N}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise PolicyError(f"share {self.share} is not between 0 and 1")
        if self.seconds is not None and self.seconds < 0:
            raise PolicyError(f"seconds {self.seconds} is negative")

    def limit_ns(self, wall_ns: int) -> int:
        if self.share is not None:
            return round(self.share * wall_ns)
        return round((self.seconds or 0) * 1e9)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Who owns what, and what it may cost."""

    owners: dict[Owned, Owner] = field(default_factory=dict)
    service_levels: dict[Owned, ServiceLevel] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that a detector may look at. Frozen: a detector is a function of it and of nothing else."""

    job: JobReport
    refresh: RefreshReport | None = None
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One service level, judged. limit_ns is None without a level; spent_ns is None where nothing told."""

    subject: Owned
    health: Health
    spent_ns: int | None
    limit_ns: int | None
    level: ServiceLevel | None
    owner: Owner | None
    reason: str


class Severity(StrEnum):
    """How loud a finding is."""

    ALERT = "alert"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a detector saw, whose it is, and what to do next."""

    detector: str
    severity: Severity
    subject: Owned | None
    owner: Owner | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All verdicts, in the order of `Owned`, and all findings, loudest first."""

    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]

    @property
    def breaches(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.health is Health.BREACHED)

    def verdict(self, subject: Owned | Component) -> Verdict:
        return next(verdict for verdict in self.verdicts if verdict.subject == subject.value)


Detector = Callable[[Snapshot], Iterable[Finding]]


def policy_from(owners: Mapping[str, Any] | None, service_levels: Mapping[str, Any] | None) -> Policy:
    """A policy from plain mappings: component -> {team, contact}, component -> {share} or {seconds}.

    Values may also be objects with these attributes. Raises PolicyError naming the entry.
    """
    return Policy(
        owners={_owned(name): _owner(name, value) for name, value in (owners or {}).items()},
        service_levels={_owned(name): _level(name, value) for name, value in (service_levels or {}).items()},
    )


def load_policy(path: Path) -> Policy:
    """Read {"owners": {...}, "service_levels": {...}} from a JSON file. Raises PolicyError."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise PolicyError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or not document.keys() <= {"owners", "service_levels"}:
        raise PolicyError(f"{path}: expected an object with 'owners' and 'service_levels'")
    try:
        return policy_from(document.get("owners"), document.get("service_levels"))
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def judge(snapshot: Snapshot) -> Judgement:
    """Every service level and every detector, over one snapshot."""
    verdicts = tuple(_verdict(snapshot, subject) for subject in Owned)
    findings = [finding for detector in DETECTORS for finding in detector(snapshot)]
    loudness = list(Severity)
    return Judgement(
        verdicts=verdicts, findings=tuple(sorted(findings, key=lambda finding: loudness.index(finding.severity)))
    )


# -- service levels ---------------------------------------------------------------------------------------------------

_NEEDS: dict[Owned, tuple[frozenset[Source], ...]] = {
    Owned.SCHEDULING: (frozenset({Source.LAUNCHER, Source.SCHEDULER}),),
    Owned.TRAINER_INIT: (frozenset({Source.TRAINER}),),
    Owned.PT2_COMPILE: (frozenset({Source.TRAINER}),),
    Owned.EFFECTIVE_TRAINING: (frozenset({Source.TRAINER}),),
    Owned.WASTED_TRAINING: (frozenset({Source.TRAINER}),),
    Owned.SHUTDOWN: (frozenset({Source.TRAINER}), frozenset({Source.LAUNCHER, Source.SCHEDULER})),
    Owned.UNATTRIBUTED: (frozenset({Source.TRAINER}), frozenset({Source.LAUNCHER, Source.SCHEDULER})),
}
"""Per component: from each of these sets one source must have spoken, else its figure is a lower bound."""


def _verdict(snapshot: Snapshot, subject: Owned) -> Verdict:
    level = snapshot.policy.service_levels.get(subject)
    owner = snapshot.policy.owners.get(subject)
    spent, wall = _spent(snapshot, subject)
    missing = _missing(snapshot, subject)
    limit = None if level is None else level.limit_ns(wall)
    health, reason = _health(snapshot.job, subject, level, spent, limit, missing)
    return Verdict(
        subject=subject, health=health, spent_ns=spent, limit_ns=limit, level=level, owner=owner, reason=reason
    )


def _health(
    job: JobReport, subject: Owned, level: ServiceLevel | None, spent: int | None, limit: int | None, missing: str
) -> tuple[Health, str]:
    if level is None or limit is None:
        return Health.UNSET, "no service level is set"
    if spent is None:
        return Health.DEGRADED, missing
    is_goal = subject is Owned.EFFECTIVE_TRAINING and level.share is not None
    live = job.state is JobState.LIVE
    if is_goal and missing and spent < limit:
        return Health.DEGRADED, missing  # the steps that would have met the goal may be what is missing
    if spent < limit if is_goal else spent > limit:
        if live and level.share is not None:
            return Health.PENDING, "outside its share so far; judged when the job ends"
        return Health.BREACHED, "below its goal" if is_goal else "over its budget"
    if missing:
        return Health.DEGRADED, missing
    return Health.HEALTHY, "meets its goal" if is_goal else "within its budget"


def _spent(snapshot: Snapshot, subject: Owned) -> tuple[int | None, int]:
    if subject not in TASK_OF:
        return snapshot.job.l2.get(Component(subject.value), 0), snapshot.job.wall_ns
    if snapshot.refresh is None:
        return None, 0
    task = snapshot.refresh.task(TASK_OF[subject])
    return (None if task is None else task.interval_ns), snapshot.refresh.wall_ns


def _missing(snapshot: Snapshot, subject: Owned) -> str:
    if subject in TASK_OF:
        if snapshot.refresh is None:
            return "Airflow's tries are missing"
        task = snapshot.refresh.task(TASK_OF[subject])
        return f"the task {TASK_OF[subject]} left no stamps" if task is None else ""
    sources = set(snapshot.job.sources)
    for alternatives in _NEEDS[subject]:
        if not alternatives & sources:
            return f"no events of the {' or '.join(sorted(source.value for source in alternatives))}"
    if frozenset({Source.TRAINER}) in _NEEDS[subject]:
        return _silent_ranks(snapshot.job) or _lost_events(snapshot.job)
    return _lost_events(snapshot.job)


def _silent_ranks(job: JobReport) -> str:
    for attempt in job.attempts:
        if attempt.missing_ranks:
            some = ", ".join(str(rank) for rank in attempt.missing_ranks[:4])
            return f"attempt {attempt.number}: no events of rank {some}"
        if attempt.launched_ns is not None and not attempt.ranks and attempt.outcome is not JobState.LIVE:
            return f"attempt {attempt.number}: no events of its trainer"
    return ""


def _lost_events(job: JobReport) -> str:
    lost = job.quality.missing_sequence + job.quality.lost_writes
    return f"{lost} events never arrived" if lost else ""


# -- detectors --------------------------------------------------------------------------------------------------------


def breached_levels(snapshot: Snapshot) -> Iterator[Finding]:
    """A component over its budget, or a goal that was missed."""
    for subject in Owned:
        verdict = _verdict(snapshot, subject)
        if verdict.health is Health.BREACHED:
            spent, limit = (verdict.spent_ns or 0) / 1e9, (verdict.limit_ns or 0) / 1e9
            message = f"{TITLE[subject]} took {spent:,.1f} s, {verdict.reason} of {limit:,.1f} s"
            yield _finding(snapshot, "service_level", Severity.ALERT, subject, message)


def missing_sources(snapshot: Snapshot) -> Iterator[Finding]:
    """Whatever is missing makes the report degraded: its silence is not health."""
    lines = snapshot.job.degraded + (() if snapshot.refresh is None else snapshot.refresh.degraded)
    for line in dict.fromkeys(lines):
        yield _finding(snapshot, "missing_source", Severity.WARNING, None, line)


def unrecovered_failures(snapshot: Snapshot) -> Iterator[Finding]:
    """An attempt that died and was not followed by one that trained."""
    if snapshot.job.state is JobState.LIVE:
        return
    for failure in snapshot.job.failures:
        if not failure.recovered:
            message = f"attempt {failure.attempt} ended by {failure.cause.value} and nothing recovered from it"
            yield _finding(snapshot, "unrecovered_failure", Severity.ALERT, None, f"{message}: {failure.message}")


def crash_loops(snapshot: Snapshot) -> Iterator[Finding]:
    """Attempts in a row that did not move the cursor: the next one will not either."""
    streak = 0
    for attempt in snapshot.job.attempts:
        streak = streak + 1 if _stood_still(attempt) else 0
        if streak == CRASH_LOOP:
            message = (
                f"attempts {attempt.number - streak + 1} to {attempt.number} failed without training a new sample: "
                "fix the cause before the next attempt"
            )
            yield _finding(snapshot, "crash_loop", Severity.ALERT, Owned.TRAINER_INIT, message)


def unexplained_time(snapshot: Snapshot) -> Iterator[Finding]:
    """More unattributed time than the residual should be."""
    spent = snapshot.job.l2.get(Component.UNATTRIBUTED, 0)
    if spent > UNATTRIBUTED_SHARE * snapshot.job.wall_ns and snapshot.job.state is not JobState.LIVE:
        message = (
            f"no source explains {spent / 1e9:,.1f} s ({100 * spent / snapshot.job.wall_ns:.1f}% of wall time): "
            "record spans there"
        )
        yield _finding(snapshot, "unexplained_time", Severity.WARNING, Owned.UNATTRIBUTED, message)


def stragglers(snapshot: Snapshot) -> Iterator[Finding]:
    """A rank that held the others up for a noticeable part of the job."""
    for straggler in snapshot.job.stragglers:
        if straggler.excess_ns > max(1_000_000_000, STRAGGLER_SHARE * snapshot.job.wall_ns):
            message = (
                f"rank {straggler.slowest_rank} on {straggler.slowest_host} took {straggler.excess_ns / 1e9:,.1f} s "
                f"longer than the median rank in {straggler.phase.value} of attempt {straggler.attempt}"
            )
            yield _finding(snapshot, "straggler", Severity.WARNING, None, message)


def recompilation(snapshot: Snapshot) -> Iterator[Finding]:
    """Graphs compiled again after the first steps: shapes that should have been marked dynamic."""
    spent = snapshot.job.exposed(Phase.RECOMPILE)
    if spent > 0.01 * snapshot.job.wall_ns:
        message = f"{spent / 1e9:,.1f} s of recompilation inside the loop: mark the dimensions that vary as dynamic"
        yield _finding(snapshot, "recompilation", Severity.WARNING, Owned.PT2_COMPILE, message)


def lost_progress(snapshot: Snapshot) -> Iterator[Finding]:
    """Samples trained before a failure that no later attempt trained again."""
    if snapshot.job.lost_not_replayed_samples:
        message = (
            f"{snapshot.job.lost_not_replayed_samples:,} samples were trained, lost in a failure and not replayed: "
            "the model has not seen them"
        )
        yield _finding(snapshot, "lost_progress", Severity.WARNING, Owned.WASTED_TRAINING, message)


def doubtful_clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """A host whose clock no shift can reconcile with cause and effect."""
    for shift in snapshot.job.clock_shifts:
        if shift.clamped:
            message = f"the clock of {shift.host} contradicts the launcher's: check its time synchronization"
            yield _finding(snapshot, "clock", Severity.WARNING, None, message)


def reducer_flags(snapshot: Snapshot) -> Iterator[Finding]:
    """What the reducer itself found odd."""
    for flag in snapshot.job.flags:
        yield _finding(snapshot, "flag", Severity.NOTE, None, flag)


DETECTORS: tuple[Detector, ...] = (
    breached_levels,
    unrecovered_failures,
    crash_loops,
    missing_sources,
    unexplained_time,
    recompilation,
    lost_progress,
    stragglers,
    doubtful_clocks,
    reducer_flags,
)


def _finding(snapshot: Snapshot, detector: str, severity: Severity, subject: Owned | None, message: str) -> Finding:
    owner = None if subject is None else snapshot.policy.owners.get(subject)
    return Finding(detector=detector, severity=severity, subject=subject, owner=owner, message=message)


def _stood_still(attempt: AttemptReport) -> bool:
    return attempt.outcome is JobState.FAILED and not attempt.productive_ns


def _owned(name: str) -> Owned:
    try:
        return Owned(name)
    except ValueError:
        raise PolicyError(f"{name!r} is not a component: use one of {', '.join(Owned)}") from None


def _owner(name: str, value: Any) -> Owner:
    team, contact = _get(value, "team"), _get(value, "contact")
    if not isinstance(team, str) or not team or not isinstance(contact, str | None):
        raise PolicyError(f"owner of {name}: expected {{'team': NAME, 'contact': TEXT or absent}}, found {value!r}")
    return Owner(team=team, contact=contact)


def _level(name: str, value: Any) -> ServiceLevel:
    share, seconds = _get(value, "share"), _get(value, "seconds")
    for given in (share, seconds):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
            raise PolicyError(f"service level of {name}: {given!r} is not a number")
    try:
        return ServiceLevel(share=share, seconds=seconds)
    except PolicyError as error:
        raise PolicyError(f"service level of {name}: {error}") from None


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
