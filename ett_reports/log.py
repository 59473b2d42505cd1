"""An event log in memory: what each process wrote, in its own monotonic clock, before anything is interpreted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ett_reports.events import Phase, ProcessIdentity
from ett_reports.report import LogQuality


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanRecord:
    """A span; end_ns None = it was open when the log ended. waits_for holds "<process>#<id>" references."""

    id: int
    phase: Phase
    start_ns: int
    end_ns: int | None
    thread: str | None
    waits_for: tuple[str, ...]
    failed: bool
    attrs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PointRecord:
    """A fact. wall_ns, when given, is its instant by the wall clock; otherwise mono_ns is."""

    sequence: int
    name: str
    mono_ns: int
    wall_ns: int | None
    attrs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWindow:
    """Steps without a gap: step i runs from end_ns[i-1] (start_ns for the first) to end_ns[i]."""

    window: int
    start_ns: int
    cursor_start: int | None
    end_ns: tuple[int, ...]
    cursor: tuple[int, ...]
    data_wait_ns: tuple[int, ...]
    thread: str | None
    closed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockPair:
    """One instant on both clocks of a process. final: it was the process's last word."""

    wall_ns: int
    mono_ns: int
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What was taken up from a dead process: its last sign of life, and the steps of its open window."""

    heartbeat_ns: int
    window: StepWindow | None


@dataclass(frozen=True, kw_only=True)
class ProcessLog:
    """All that one process wrote. pairs: (wall, monotonic); last_life_ns and ended_ns are monotonic."""

    identity: ProcessIdentity
    host: str
    pairs: tuple[tuple[int, int], ...]
    spans: tuple[SpanRecord, ...]
    points: tuple[PointRecord, ...]
    windows: tuple[StepWindow, ...]
    start_ns: int
    last_life_ns: int
    ended: bool


@dataclass(frozen=True, kw_only=True)
class EventLog:
    """One job's log: processes in the order of their names, and what the reader met on the way."""

    job: str
    processes: tuple[ProcessLog, ...]
    quality: LogQuality = field(default_factory=LogQuality)
