"""Placement: every process's events on one reference clock, shifted no more than causality asks (section 6)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from ett_reports.events import Phase, Point, Provenance, Source
from ett_reports.facts import AttemptFacts, Fact, attempts_of, facts_of, wall_offset, whole
from ett_reports.log import EventLog, ProcessLog
from ett_reports.report import ClockShift

_POINTS = frozenset(Point)

CLOCK_STEP_NS = 100_000_000
"""Pairs of one process that disagree by more show that its wall clock was set while it ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedSpan:
    """A span on the reference clock (unix ns). end_ns None = open."""

    reference: str
    phase: Phase
    start_ns: int
    end_ns: int | None
    thread: str | None
    waits_for: tuple[str, ...]
    failed: bool
    attrs: dict[str, Any]


@dataclass(kw_only=True)
class Steps:
    """The completed steps of one rank, in order; step i is [start[i], end[i]] and consumed before[i]..after[i]."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    thread: str | None = None

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One process of an attempt, placed. provenance is estimated where its clock was moved."""

    name: str
    rank: int | None
    world_size: int | None
    devices: int | None
    host: str
    source: Source
    spans: tuple[PlacedSpan, ...]
    steps: Steps
    points: tuple[tuple[int, Fact], ...]
    start_ns: int
    last_life_ns: int
    ended: bool
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """An instant that a source told."""

    ns: int
    provenance: Provenance
    fact: Fact


@dataclass(kw_only=True)
class PlacedAttempt:
    """One attempt with everything on the reference clock."""

    number: int
    stamps: dict[Point, list[Stamp]]
    facts: AttemptFacts
    trainers: list[Trainer]
    agents: list[Trainer]

    def stamp(self, name: Point) -> Stamp | None:
        return self._find(name, self.facts.best(name))

    def last_stamp(self, name: Point) -> Stamp | None:
        return self._find(name, self.facts.last(name))

    def _find(self, name: Point, fact: Fact | None) -> Stamp | None:
        if fact is None:
            return None
        return next((stamp for stamp in self.stamps.get(name, []) if stamp.fact.key == fact.key), None)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The whole log on one clock."""

    attempts: tuple[PlacedAttempt, ...]
    shifts: tuple[ClockShift, ...]
    reference: Source | None
    clock_steps: int


@dataclass
class _Bounds:
    """Shifts that causality allows: low..high, None = unbounded."""

    low: int | None = None
    high: int | None = None

    def at_least(self, value: int) -> None:
        self.low = value if self.low is None else max(self.low, value)

    def at_most(self, value: int) -> None:
        self.high = value if self.high is None else min(self.high, value)

    def smallest(self) -> int:
        """The smallest shift into the bounds. Where none fits, a start after its cause is the stronger claim."""
        if self.low is not None and self.low > 0:
            return self.low
        if self.high is not None and self.high < 0:
            return self.high if self.low is None else max(self.low, self.high)
        return 0

    @property
    def impossible(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high


def place(log: EventLog) -> Placement:
    """Put all processes of the job on the reference clock."""
    attempts = attempts_of(log)
    sources = {process.identity.source for process in log.processes}
    reference = next((s for s in (Source.AIRFLOW, Source.SCHEDULER, Source.LAUNCHER) if s in sources), None)
    shifts: dict[tuple[Source, str, int | None], ClockShift] = {}
    if reference is Source.AIRFLOW:
        _shift_launchers(log, attempts, shifts)
    placed = [_place_attempt(attempt, shifts) for attempt in attempts]
    moved = sorted(shifts.values(), key=lambda shift: (shift.attempt or 0, shift.source, shift.host))
    return Placement(
        attempts=tuple(placed),
        shifts=tuple(shift for shift in moved if shift.shift_ns or shift.clamped),
        reference=reference,
        clock_steps=sum(_clock_was_set(process) for process in log.processes),
    )


def _clock_was_set(process: ProcessLog) -> bool:
    offsets = [wall - mono for wall, mono in process.pairs]
    return max(offsets) - min(offsets) > CLOCK_STEP_NS


def _shift_launchers(
    log: EventLog, attempts: list[AttemptFacts], shifts: dict[tuple[Source, str, int | None], ClockShift]
) -> None:
    """Operators bound the launcher: nothing is submitted before a task's code runs, nor released after the end."""
    airflow = [process for process in log.processes if process.identity.source is Source.AIRFLOW]
    operators = [fact for process in airflow for fact in facts_of(process)]
    jobs = [fact for fact in operators if fact.attrs.get("task") in ("launch", "train")]
    began = min((fact.wall_ns for fact in jobs if fact.name == Point.TASK_CODE_START), default=None)
    ends = [f.wall_ns for f in jobs if f.name == Point.TASK_END and f.attrs.get("task") == "train"]
    final = bool(attempts) and any(_completed(fact) for fact in attempts[-1].told(Point.RELEASED))
    hosts: dict[tuple[Source, str], _Bounds] = {}
    for attempt in attempts:
        for name, facts in attempt.facts.items():
            for fact in facts:
                if fact.source not in (Source.LAUNCHER, Source.SCHEDULER):
                    continue
                bounds = hosts.setdefault((fact.source, fact.host), _Bounds())
                if began is not None and name in (Point.SUBMITTED, Point.ALLOCATED, Point.LAUNCHED):
                    bounds.at_least(began - fact.wall_ns - fact.resolution_ns)
                if ends and final and attempt is attempts[-1] and name == Point.RELEASED:
                    bounds.at_most(max(ends) - fact.wall_ns)
    for (source, host), bounds in hosts.items():
        shifts[source, host, None] = _shift(source, host, None, bounds)


def _completed(fact: Fact) -> bool:
    return fact.attrs.get("outcome") == "completed"


def _shift(source: Source, host: str, attempt: int | None, bounds: _Bounds) -> ClockShift:
    return ClockShift(
        host=host,
        attempt=attempt,
        source=source,
        shift_ns=bounds.smallest(),
        low_ns=bounds.low,
        high_ns=bounds.high,
        clamped=bounds.impossible,
    )


def _place_attempt(attempt: AttemptFacts, shifts: dict[tuple[Source, str, int | None], ClockShift]) -> PlacedAttempt:
    stamps: dict[Point, list[Stamp]] = {}
    for name, facts in attempt.facts.items():
        told = [_stamp(fact, shifts) for fact in facts if fact.source is not Source.TRAINER]
        if told and name in _POINTS:
            stamps[Point(name)] = told
    placed = PlacedAttempt(number=attempt.number, stamps=stamps, facts=attempt, trainers=[], agents=[])
    launched = _first(placed, Point.LAUNCHED, Point.ALLOCATED, Point.SUBMITTED)
    released = placed.last_stamp(Point.RELEASED)
    hosts: dict[str, _Bounds] = {}
    for process in attempt.trainers:
        offset = wall_offset(process)
        bounds = hosts.setdefault(process.host, _Bounds())
        if launched is not None:
            bounds.at_least(launched.ns - process.start_ns - offset)
        if released is not None:
            bounds.at_most(released.ns + released.fact.resolution_ns - process.last_life_ns - offset)
    for host, bounds in hosts.items():
        shifts[Source.TRAINER, host, attempt.number] = _shift(Source.TRAINER, host, attempt.number, bounds)
    low = launched.ns if launched is not None else None
    high = released.ns + released.fact.resolution_ns if released is not None else None
    for process in attempt.trainers:
        shift = shifts[Source.TRAINER, process.host, attempt.number]
        placed.trainers.append(_place_process(process, shift, (low, high)))
        _add_trainer_stamps(placed, placed.trainers[-1])
    for process in attempt.agents:
        known = shifts.get((process.identity.source, process.host, None))
        placed.agents.append(_place_process(process, known, (None, None)))
    return placed


def _first(placed: PlacedAttempt, *names: Point) -> Stamp | None:
    return next((stamp for name in names if (stamp := placed.stamp(name)) is not None), None)


def _stamp(fact: Fact, shifts: dict[tuple[Source, str, int | None], ClockShift]) -> Stamp:
    shift = shifts.get((fact.source, fact.host, None))
    moved = shift is not None and shift.shift_ns != 0
    return Stamp(
        ns=fact.wall_ns + (shift.shift_ns if shift is not None else 0),
        provenance=Provenance.ESTIMATED if moved else Provenance.MEASURED,
        fact=fact,
    )


def _add_trainer_stamps(placed: PlacedAttempt, trainer: Trainer) -> None:
    for ns, fact in trainer.points:
        if fact.name in _POINTS:
            stamp = Stamp(ns=ns, provenance=trainer.provenance, fact=fact)
            placed.stamps.setdefault(Point(fact.name), []).append(stamp)


class _Timebase:
    """Monotonic stamps of one process -> the reference clock, clamped where no shift fits."""

    def __init__(self, offset: int, limits: tuple[int | None, int | None]) -> None:
        self.offset = offset
        self.low, self.high = limits

    def __call__(self, mono: int) -> int:
        value = mono + self.offset
        if self.high is not None:
            value = min(value, self.high)
        return value if self.low is None else max(value, self.low)


def _place_process(process: ProcessLog, shift: ClockShift | None, limits: tuple[int | None, int | None]) -> Trainer:
    offset = wall_offset(process) + (shift.shift_ns if shift is not None else 0)
    clamped = shift is not None and shift.clamped
    at = _Timebase(offset, limits if clamped else (None, None))
    moved = shift is not None and (shift.shift_ns != 0 or shift.clamped)
    name = process.identity.process
    spans = tuple(
        PlacedSpan(
            reference=f"{name}#{span.id}",
            phase=span.phase,
            start_ns=at(span.start_ns),
            end_ns=None if span.end_ns is None else at(span.end_ns),
            thread=span.thread,
            waits_for=span.waits_for,
            failed=span.failed,
            attrs=span.attrs,
        )
        for span in process.spans
    )
    delta = shift.shift_ns if shift is not None else 0
    points = tuple((at(fact.wall_ns + delta - offset), fact) for fact in facts_of(process))
    return Trainer(
        name=name,
        rank=process.identity.rank,
        world_size=process.identity.world_size,
        devices=process.identity.devices,
        host=process.host,
        source=process.identity.source,
        spans=spans,
        steps=_place_steps(process, at, points),
        points=points,
        start_ns=at(process.start_ns),
        last_life_ns=at(process.last_life_ns),
        ended=process.ended,
        provenance=Provenance.ESTIMATED if moved else Provenance.MEASURED,
    )


def _place_steps(process: ProcessLog, at: _Timebase, points: tuple[tuple[int, Fact], ...]) -> Steps:
    """One sequence of steps in order; what overlaps an earlier window (a foreign writer's slip) is cut off."""
    steps = Steps(thread=next((window.thread for window in process.windows if window.thread), None))
    cursors = [(ns, whole(fact.attrs.get("cursor"))) for ns, fact in points if fact.name == Point.RESTORED]
    restored = sorted((ns, cursor) for ns, cursor in cursors if cursor is not None)
    latest: int | None = None
    cursor: int | None = None
    for window in process.windows:
        start = at(window.start_ns)
        index = bisect_right(restored, (start, 1 << 63)) - 1
        if window.cursor_start is not None:
            cursor = window.cursor_start
        elif index >= 0 and (latest is None or restored[index][0] > latest):
            cursor = restored[index][1]
        for end, after, wait in zip(window.end_ns, window.cursor, window.data_wait_ns, strict=True):
            start = start if latest is None else max(start, latest)
            placed = at(end)
            if placed < start:
                continue
            latest = placed
            steps.start.append(start)
            steps.end.append(latest)
            steps.before.append(_before(cursor, after, window.cursor))
            steps.after.append(after)
            steps.wait.append(min(wait, latest - start))
            start, cursor = latest, after
    return steps


def _before(cursor: int | None, after: int, cursors: tuple[int, ...]) -> int:
    """The cursor before a step; where nothing tells, steps are taken to be alike."""
    if cursor is not None:
        return min(cursor, after)
    stride = cursors[1] - cursors[0] if len(cursors) > 1 else after
    return max(0, after - stride) if stride > 0 else after
