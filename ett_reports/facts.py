"""What the sources say about each attempt, merged: trainer before launcher before scheduler before Airflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ett_reports.events import JOB_TASKS, PRECEDENCE, Cause, Point, Source
from ett_reports.log import EventLog, PointRecord, ProcessLog


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A point at an instant of the writer's wall clock (unix ns), not yet shifted."""

    name: str
    wall_ns: int
    attempt: int | None
    source: Source
    host: str
    process: str
    sequence: int
    attrs: dict[str, Any]

    @property
    def order(self) -> tuple[int, int, str, int]:
        return (self.wall_ns, PRECEDENCE.index(self.source), self.process, self.sequence)

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the event in the log."""
        return (self.process, self.sequence)

    @property
    def cause(self) -> Cause | None:
        try:
            return Cause(self.attrs.get("cause") or "")
        except (ValueError, TypeError):
            return None

    @property
    def resolution_ns(self) -> int:
        return whole(self.attrs.get("resolution_ns")) or 0


@dataclass(kw_only=True)
class AttemptFacts:
    """One attempt's facts by name, and the processes that trained in it."""

    number: int
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    trainers: list[ProcessLog] = field(default_factory=list)
    agents: list[ProcessLog] = field(default_factory=list)

    def best(self, name: Point) -> Fact | None:
        """The first telling by the best source: a fact that is told again (a restarted launcher) has not moved."""
        return min(self.told(name), key=lambda fact: (PRECEDENCE.index(fact.source), fact.order), default=None)

    def last(self, name: Point) -> Fact | None:
        """The last telling by the best source."""
        told = self.told(name)
        best = min((PRECEDENCE.index(fact.source) for fact in told), default=None)
        return max((f for f in told if PRECEDENCE.index(f.source) == best), key=lambda fact: fact.order, default=None)

    def told(self, name: Point) -> list[Fact]:
        return self.facts.get(name, [])


def whole(value: Any) -> int | None:
    """A non-negative integer out of an untrusted attribute, else None."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def wall_offset(process: ProcessLog) -> int:
    """wall - monotonic of one process: the lower median of its pairs, which one step of the wall clock cannot move."""
    offsets = sorted(wall - mono for wall, mono in process.pairs)
    return offsets[(len(offsets) - 1) // 2]


def facts_of(process: ProcessLog) -> list[Fact]:
    """Every point of one process as a fact of its wall clock."""
    offset = wall_offset(process)
    return [_fact(process, point, offset) for point in process.points]


def _fact(process: ProcessLog, point: PointRecord, offset: int) -> Fact:
    # A trainer lives in one attempt; the others outlive attempts and say with each point which one they mean.
    attempt = None if process.identity.source is Source.TRAINER else whole(point.attrs.get("attempt"))
    return Fact(
        name=point.name,
        wall_ns=point.mono_ns + offset if point.wall_ns is None else point.wall_ns,
        attempt=process.identity.attempt if attempt is None else attempt,
        source=process.identity.source,
        host=process.host,
        process=process.identity.process,
        sequence=point.sequence,
        attrs=point.attrs,
    )


def attempts_of(log: EventLog) -> list[AttemptFacts]:
    """The attempts that any source knows, by number. A trainer that gives none is taken for the first."""
    attempts: dict[int, AttemptFacts] = {}

    def attempt(number: int) -> AttemptFacts:
        return attempts.setdefault(number, AttemptFacts(number=number))

    for process in log.processes:
        identity = process.identity
        if identity.task not in JOB_TASKS:
            continue
        if identity.source is Source.TRAINER:
            attempt(_number(identity.attempt)).trainers.append(process)
        elif identity.source is not Source.AIRFLOW and identity.attempt is not None:
            attempt(_number(identity.attempt)).agents.append(process)
        if identity.source is Source.AIRFLOW:
            continue
        for fact in facts_of(process):
            # A launcher that serves several attempts says which; what names no attempt cannot be placed in one.
            if fact.attrs.get("task") not in JOB_TASKS or (fact.attempt is None and fact.source is not Source.TRAINER):
                continue
            attempt(_number(fact.attempt)).facts.setdefault(fact.name, []).append(fact)
    _add_airflow_submissions(log, attempts)
    return [attempts[number] for number in sorted(attempts) if _is_real(attempts[number])]


def _number(attempt: int | None) -> int:
    return attempt or 1


def _is_real(attempt: AttemptFacts) -> bool:
    """An agent alone is not an attempt: something must have been submitted, launched or trained."""
    return bool(attempt.trainers or attempt.facts)


def _add_airflow_submissions(log: EventLog, attempts: dict[int, AttemptFacts]) -> None:
    """Operators know when they called submit: it serves where neither launcher nor scheduler said so."""
    airflow = [process for process in log.processes if process.identity.source is Source.AIRFLOW]
    facts = [fact for process in airflow for fact in facts_of(process)]
    submits = sorted(
        (f for f in facts if f.name == Point.TASK_SUBMIT and f.attrs.get("task") in ("launch", "train")),
        key=lambda fact: fact.order,
    )
    for index, fact in enumerate(submits):
        number = fact.attempt if fact.attempt is not None else index + 1
        known = attempts.get(number or 1)
        if known is not None:
            known.facts.setdefault(Point.SUBMITTED, []).append(fact)
