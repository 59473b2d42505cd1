"""The tolerant reader: any folder of event files -> an EventLog, counting what was torn, doubled, foreign or lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ett_reports.events import SCHEMA_VERSION, Kind, Point, ProcessIdentity
from ett_reports.flight_recorder import FILE_NAME, FlightState, read_flight
from ett_reports.lines import Header, InvalidEventError, Record, UnknownKindError, UnknownPhaseError, parse_event
from ett_reports.log import ClockPair, EventLog, PointRecord, ProcessLog, SpanRecord, StepWindow, Sweep
from ett_reports.report import LogQuality

_KNOWN_POINTS = frozenset(Point)


class LogError(Exception):
    """Nothing to reduce at this path; the message is one line and says what was expected."""


@dataclass(slots=True)
class _Line:
    """One line, parsed. fault names the count that it adds to instead of a record."""

    digest: bytes
    record: Record | None
    fault: str
    lost: int


@dataclass
class _Raw:
    """Lines of one incarnation of a process, from all its files, before they are put in order."""

    lines: dict[int, _Line] = field(default_factory=dict)
    sweeps: dict[bytes, Sweep] = field(default_factory=dict)
    flights: list[FlightState] = field(default_factory=list)

    def add(self, line: str, event: dict[str, Any], process: str, counts: Counter[str]) -> None:
        parsed = _parse(line, event, process)
        if isinstance(parsed.record, Sweep):
            self.sweeps[parsed.digest] = parsed.record
            return
        sequence = event.get("seq")
        if type(sequence) is not int or sequence < 0:
            counts["invalid_events"] += 1
            return
        known = self.lines.get(sequence)
        counts["duplicates"] += known is not None
        # Copies are equal as a rule; when they are not, the choice must not depend on the order of files.
        if known is None or parsed.digest < known.digest:
            self.lines[sequence] = parsed


_Incarnation = tuple[str, str, str, str]
"""Process, host, pid and job of a process line."""


@dataclass
class _Collected:
    """Everything read: by incarnation, and by folder where a line says nothing of its writer."""

    raw: dict[_Incarnation, _Raw] = field(default_factory=dict)
    folders: dict[Path, set[_Incarnation]] = field(default_factory=dict)
    orphans: list[tuple[Path, str, dict[str, Any]]] = field(default_factory=list)
    flights: list[tuple[Path, FlightState]] = field(default_factory=list)

    def adopt(self, counts: Counter[str]) -> None:
        """Give what has no process line above it to the process that its folder belongs to."""
        for folder, line, event in self.orphans:
            key = self._owner(folder)
            self.raw.setdefault(key, _Raw()).add(line, event, key[0], counts)
        for folder, state in self.flights:
            self.raw.setdefault(self._owner(folder), _Raw()).flights.append(state)

    def _owner(self, folder: Path) -> _Incarnation:
        return min(self.folders.get(folder, {(folder.name, "", "", "")}))


def read_log(path: Path | str) -> EventLog:
    """Read a run folder, its events folder, or one event file.

    Raises LogError when there is nothing to reduce: no such path, no events, another version only, or two jobs.
    """
    path = Path(path)
    files = _files(path)
    counts: Counter[str] = Counter(files=len(files))
    collected = _Collected()
    for file in files:
        _read_file(file, collected, counts)
    collected.adopt(counts)
    raw = collected.raw
    processes = [built for key in sorted(raw) if (built := _build(key[0], raw[key], counts)) is not None]
    jobs = sorted({process.identity.job for process in processes})
    if not jobs:
        raise LogError(_why_empty(path, counts))
    if len(jobs) > 1:
        raise LogError(f"{path}: events of {len(jobs)} jobs ({', '.join(jobs[:3])}): give the folder of one run")
    counts["processes"] = len(processes)
    fields = LogQuality.__dataclass_fields__
    quality = LogQuality(**{name: count for name, count in counts.items() if name in fields})
    return EventLog(job=jobs[0], processes=tuple(processes), quality=quality)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LogError(f"{path}: no such file or folder: give a run folder or its events folder")
    root = path / "events" if (path / "events").is_dir() else path
    found = [file for file in root.rglob("*") if file.suffix == ".jsonl" or file.name == FILE_NAME]
    return sorted(file for file in found if file.is_file())


def _why_empty(path: Path, counts: Counter[str]) -> str:
    if not counts["files"]:
        return f"{path}: no event files (*.jsonl) in it: give a run folder or its events folder"
    if counts["other_version"]:
        return f"{path}: events of another schema version only; this program reads version {SCHEMA_VERSION}"
    if counts["torn_lines"] and not counts["events"]:
        return f"{path}: not an event log: no line of it is a JSON object"
    return f"{path}: no process line (kind 'process') in it, so no event can be placed: is this an event log?"


def _read_file(file: Path, collected: _Collected, counts: Counter[str]) -> None:
    """Lines belong to the process of the last process line above them, else to the one that the folder is named for."""
    if file.name == FILE_NAME:
        counts["files"] -= 1
        state = read_flight(file)
        if state is not None:
            collected.flights.append((file.parent, state))
        return
    try:
        data = file.read_bytes()
    except OSError:
        counts["unreadable_files"] += 1
        return
    highest = -1
    current: _Incarnation | None = None
    for line in data.decode("utf-8", errors="replace").split("\n"):
        event = _parse_line(line, counts)
        if event is None:
            continue
        if event.get("kind") == Kind.PROCESS and isinstance(event.get("process"), str):
            # A name that was used twice is two processes: host, pid and, in containers where those agree, the job.
            current = (event["process"], str(event.get("host")), str(event.get("pid")), str(event.get("job")))
            collected.folders.setdefault(file.parent, set()).add(current)
        if current is None:
            collected.orphans.append((file.parent, line, event))
        else:
            collected.raw.setdefault(current, _Raw()).add(line, event, current[0], counts)
        sequence = event.get("seq")
        if type(sequence) is int:
            counts["out_of_order"] += sequence < highest
            highest = max(highest, sequence)


def _parse_line(line: str, counts: Counter[str]) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        counts["torn_lines"] += 1
        return None
    if not isinstance(event, dict):
        counts["torn_lines"] += 1
        return None
    counts["events"] += 1
    if event.get("v") != SCHEMA_VERSION:
        counts["other_version"] += 1
        return None
    return event


def _parse(line: str, event: dict[str, Any], process: str) -> _Line:
    digest = blake2b(line.encode("utf-8", errors="replace"), digest_size=8).digest()
    lost = event.get("lost")
    record, fault = None, ""
    try:
        record = parse_event(event, process)
    except UnknownPhaseError:
        fault = "unknown_phases"
    except UnknownKindError:
        fault = "unknown_kinds"
    except InvalidEventError:
        fault = "invalid_events"
    return _Line(digest=digest, record=record, fault=fault, lost=max(0, lost) if type(lost) is int else 0)


def _build(name: str, raw: _Raw, counts: Counter[str]) -> ProcessLog | None:
    builder = _Builder(name, counts)
    for sequence in sorted(raw.lines):
        line = raw.lines[sequence]
        counts["lost_writes"] += line.lost
        if line.record is None:
            counts[line.fault] += 1
        else:
            builder.take(line.record)
    builder.count_gaps(raw.lines)
    for digest in sorted(raw.sweeps):
        builder.take(raw.sweeps[digest])
    for state in raw.flights:
        builder.flight(state)
    return builder.result()


class _Builder:
    """Collects one process's records in order."""

    def __init__(self, name: str, counts: Counter[str]) -> None:
        self.name = name
        self.counts = counts
        self.identity: ProcessIdentity | None = None
        self.host = ""
        self.pairs: list[tuple[int, int]] = []
        self.spans: dict[int, SpanRecord] = {}
        self.points: list[PointRecord] = []
        self.windows: dict[int, StepWindow] = {}
        self.instants: list[int] = []
        self.ended = False

    def take(self, record: Record) -> None:
        match record:
            case SpanRecord():
                self._span(record)
            case StepWindow():
                self._steps(record)
            case PointRecord():
                self.counts["unknown_points"] += record.name not in _KNOWN_POINTS
                self.points.append(record)
                self.instants.append(record.mono_ns)
            case ClockPair():
                self._pair(record)
                self.ended = self.ended or record.final
            case Header():
                self.identity = self.identity or record.identity
                self.host = self.host or record.host
                self._pair(record.pair)
            case Sweep():
                self.instants.append(record.heartbeat_ns)
                if record.window is not None:
                    self._steps(record.window)

    def _pair(self, pair: ClockPair) -> None:
        self.pairs.append((pair.wall_ns, pair.mono_ns))
        self.instants.append(pair.mono_ns)

    def _span(self, span: SpanRecord) -> None:
        known = self.spans.get(span.id)
        if known is None or known.end_ns is None:
            self.spans[span.id] = span
        self.instants.append(span.start_ns if span.end_ns is None else span.end_ns)

    def _steps(self, window: StepWindow) -> None:
        """A window may come as a line and again from a flight recorder: the line, else the fuller copy, counts."""
        if not window.end_ns:
            return
        known = self.windows.get(window.window)
        if known is None or (window.closed, len(window.end_ns)) > (known.closed, len(known.end_ns)):
            self.windows[window.window] = window
        self.instants.append(window.end_ns[-1])

    def flight(self, state: FlightState) -> None:
        if state.heartbeat_ns > 0:
            self.instants.append(state.heartbeat_ns)
        ends = state.end_ns
        if ends and ends[0] >= state.start_ns >= 0 and list(ends) == sorted(ends):
            self._steps(
                StepWindow(
                    window=state.window,
                    start_ns=state.start_ns,
                    cursor_start=state.cursor_start,
                    end_ns=ends,
                    cursor=state.cursor,
                    data_wait_ns=state.data_wait_ns,
                    thread=None,
                    closed=False,
                )
            )

    def count_gaps(self, sequences: Iterable[int]) -> None:
        numbers = set(sequences)
        if numbers:
            self.counts["missing_sequence"] += max(numbers) + 1 - len(numbers)

    def result(self) -> ProcessLog | None:
        if self.identity is None or not self.pairs:
            self.counts["invalid_events"] += len(self.points) + len(self.spans) + len(self.windows)
            return None
        self.counts["flight_windows"] += sum(not window.closed for window in self.windows.values())
        starts = [window.start_ns for window in self.windows.values()]
        starts += [span.start_ns for span in self.spans.values()] + [mono for _, mono in self.pairs]
        return ProcessLog(
            identity=self.identity,
            host=self.host,
            pairs=tuple(self.pairs),
            spans=tuple(sorted(self.spans.values(), key=lambda span: (span.start_ns, span.id))),
            points=tuple(self.points),
            windows=tuple(sorted(self.windows.values(), key=lambda window: (window.start_ns, window.window))),
            start_ns=min(starts),
            last_life_ns=max(self.instants + starts),
            ended=self.ended,
        )
