"""The recorder: a process's crash-safe, append-only writer of events. Imports the standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from ett_reports.clock import Clock, SystemClock
from ett_reports.events import DERIVED_PHASES, SCHEMA_VERSION, EventError, Kind, Phase, ProcessIdentity
from ett_reports.flight_recorder import CAPACITY, FILE_NAME, FlightRecorder

WINDOW_NS = 1_000_000_000
SEGMENT_BYTES = 1 << 20
CLOCK_PAIR_NS = 60_000_000_000

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Span:
    """A stretch of one phase, open until its `with` block ends. Pass it to another span's `waits_for`."""

    def __init__(self, recorder: Recorder, phase: Phase, waits_for: list[int | str], attrs: dict[str, Any]) -> None:
        self.phase = phase
        self.id = 0
        self.start_ns = 0
        self.end_ns: int | None = None
        self._recorder = recorder
        self._waits_for = waits_for
        self._attrs = attrs

    @property
    def reference(self) -> str:
        """Names this span for a `waits_for` in another process: "<process>#<id>"."""
        return f"{self._recorder.identity.process}#{self.id}"

    def note(self, **attrs: Any) -> None:
        """Add what is known only at the end, such as a size."""
        self._attrs.update(attrs)

    def __enter__(self) -> Span:
        self._recorder._open_span(self, self._waits_for, self._attrs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        message = None if kind is None else f"{kind.__name__}: {error}"[:500]
        self._recorder._close_span(self, self._waits_for, self._attrs, message)


class Recorder:
    """Writes `<folder>/<process>/<segment>.jsonl` and a flight recorder beside it (section 8).

    Cost: `step` stores into mapped memory, with no system call; about once a second a window of steps becomes one
    line. Every other event is one `write` of one whole line. Nothing here raises because of the disk: what could not
    be written is counted and reported in the log (`lost`) once writing works again. Threads may share a recorder
    (steps belong to one thread). After `fork` the child's copy is silent: give a child process its own recorder.

    Raises EventError for values that can never be right, such as a span of a phase that only the reducer assigns.
    """

    def __init__(
        self,
        folder: Path,
        identity: ProcessIdentity,
        *,
        clock: Clock | None = None,
        host: str | None = None,
    ) -> None:
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._folder, process = _claim_folder(Path(folder), identity.process)
        self.identity = ProcessIdentity(**{**_fields(identity), "process": process})
        self._host = host or platform.node()
        self._sequence = 0
        self._next_span = 0
        self._lost = 0
        self._torn = False
        self._closed = False
        self._thread = threading.local()
        self._segment = 0
        self._descriptor = -1
        self._written = SEGMENT_BYTES
        self._next_pair_ns = 0
        self._window = 0
        self._window_start_ns: int | None = None
        self._window_ends_ns = 0
        self._cursor: int | None = None
        self._loop_thread = ""
        self._flight = _flight_recorder(self._folder / FILE_NAME)
        self._rotate()
        _recorders.add(self)

    # -- spans and points ---------------------------------------------------------------------------------------

    def span(self, phase: Phase, *, waits_for: Iterable[Span | str] = (), **attrs: Any) -> Span:
        """A context manager over one phase. An exception closes it with `error`, which is no sign of progress.

        waits_for: spans whose end this one waited for before it could start (section 5). Spans of other processes
        are given by their `reference`.
        """
        return Span(self, _recordable(phase), _references(waits_for), dict(attrs))

    def record_span(
        self,
        phase: Phase,
        start_ns: int,
        end_ns: int,
        *,
        waits_for: Iterable[Span | str] = (),
        thread: str | None = None,
        **attrs: Any,
    ) -> Span:
        """A span after the fact, by `time.monotonic_ns()` stamps of this process.

        thread: where it ran, for the rule that on one thread the innermost span wins. None = not known: it lies
        beside the others in startup, and a blocking phase in the loop is taken to have blocked it.
        """
        if end_ns < start_ns:
            raise EventError(f"span {phase} ends {start_ns - end_ns} ns before it starts: swap the stamps")
        span = Span(self, _recordable(phase), _references(waits_for), dict(attrs))
        with self._lock:
            span.id = self._new_span_id()
            span.start_ns, span.end_ns = start_ns, end_ns
            self._write_span(span, span._waits_for, attrs, thread, None)
        return span

    def point(self, name: str, *, wall_ns: int | None = None, **attrs: Any) -> None:
        """A fact now, or at an explicit wall-clock instant (unix ns) when it was learnt from elsewhere."""
        event: dict[str, Any] = {"name": str(name), "mono_ns": self._clock.mono_ns()}
        if wall_ns is not None:
            event["wall_ns"] = wall_ns
        event["attrs"] = attrs
        self._append(Kind.POINT, event)

    # -- steps --------------------------------------------------------------------------------------------------

    def begin_steps(self, *, cursor: int | None = None) -> None:
        """Open the loop's clock: the next step starts here. Call it again to leave time between two steps out of both.

        cursor: the global cursor before the next step. None = what the last `restored` point says, else as before.
        """
        now = self._clock.mono_ns()
        with self._lock:
            self._flush_window()
            self._cursor = cursor
            self._loop_thread = self._thread_name()
            self._open_window(now)
            self._flight.beat(now)

    def step(self, *, cursor: int, data_wait_ns: int = 0) -> None:
        """Close one step. cursor: samples of the planned stream consumed so far, over all ranks.

        data_wait_ns: how long the loop waited for this step's data.
        """
        now = self._clock.mono_ns()
        if self._window_start_ns is None:
            if self._closed:
                return
            raise EventError("step() before begin_steps(): call begin_steps() where the first step starts")
        self._cursor = cursor
        if self._flight.add(now, cursor, data_wait_ns) >= CAPACITY or now >= self._window_ends_ns:
            with self._lock:
                self._flush_window()
                self._open_window(now)

    def heartbeat(self) -> None:
        """A sign of life, without a system call. Every event is one too."""
        # Another thread may close the recorder at this very moment.
        with contextlib.suppress(ValueError):
            if not self._closed:
                self._flight.beat(self._clock.mono_ns())

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is open and say goodbye. Calling it twice is fine; afterwards the recorder is silent."""
        with self._lock:
            if self._closed:
                return
            self._flush_window()
            self._append(Kind.END, {"mono_ns": self._clock.mono_ns(), "wall_ns": self._clock.wall_ns()})
            self._silence()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _open_span(self, span: Span, waits_for: list[int | str], attrs: dict[str, Any]) -> None:
        with self._lock:
            span.id = self._new_span_id()
            span.start_ns = self._clock.mono_ns()
            event = {"id": span.id, "phase": span.phase, "start_ns": span.start_ns, "thread": self._thread_name()}
            self._append(Kind.OPEN, {**event, "waits_for": waits_for, "attrs": attrs})

    def _close_span(self, span: Span, waits_for: list[int | str], attrs: dict[str, Any], error: str | None) -> None:
        span.end_ns = self._clock.mono_ns()
        with self._lock:
            self._write_span(span, waits_for, attrs, self._thread_name(), error)

    def _write_span(
        self, span: Span, waits_for: list[int | str], attrs: dict[str, Any], thread: str | None, error: str | None
    ) -> None:
        event: dict[str, Any] = {"id": span.id, "phase": span.phase, "start_ns": span.start_ns, "end_ns": span.end_ns}
        event.update(thread=thread, waits_for=waits_for, attrs=attrs)
        if error is not None:
            event["error"] = error
        self._append(Kind.SPAN, event)

    def _new_span_id(self) -> int:
        self._next_span += 1
        return self._next_span

    def _open_window(self, now: int) -> None:
        self._window += 1
        self._window_start_ns = now
        self._window_ends_ns = now + WINDOW_NS
        self._flight.open_window(self._window, now, self._cursor)

    def _flush_window(self) -> None:
        if self._window_start_ns is None or self._flight.count == 0:
            return
        held = self._flight.state()
        event = {
            "window": self._window,
            "start_ns": held.start_ns,
            "cursor_start": held.cursor_start,
            "end_ns": [end - held.start_ns for end in held.end_ns],
            "cursor": held.cursor,
            "data_wait_ns": held.data_wait_ns if any(held.data_wait_ns) else [],
            "thread": self._loop_thread,
        }
        self._append(Kind.STEPS, event)

    def _thread_name(self) -> str:
        name = getattr(self._thread, "name", None)
        if name is None:
            name = self._thread.name = f"{threading.current_thread().name}:{threading.get_native_id()}"
        return name

    def _append(self, kind: Kind, event: dict[str, Any]) -> None:
        with self._lock:
            if self._closed:
                return
            now = self._clock.mono_ns()
            self._flight.beat(now)
            if self._written >= SEGMENT_BYTES:
                self._rotate()
            self._write(kind, event)
            if now >= self._next_pair_ns and kind is not Kind.END:
                self._write(Kind.CLOCK, self._clock_pair())

    def _clock_pair(self) -> dict[str, int]:
        # The wall stamp is taken between two monotonic ones, so the pair is right even if we are paused in between.
        best: tuple[int, int, int] | None = None
        for _ in range(3):
            before = self._clock.mono_ns()
            wall = self._clock.wall_ns()
            width = self._clock.mono_ns() - before
            if best is None or width < best[0]:
                best = (width, before + width // 2, wall)
        assert best is not None
        self._next_pair_ns = best[1] + CLOCK_PAIR_NS
        return {"mono_ns": best[1], "wall_ns": best[2]}

    def _rotate(self) -> None:
        """Begin the next numbered segment with a process line, so that each segment can be read alone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._segment += 1
        self._written = 0
        path = self._folder / f"{self._segment:06d}.jsonl"
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            self._lost += 1
        header = {**_fields(self.identity), "host": self._host, "pid": os.getpid(), **self._clock_pair()}
        self._write(Kind.PROCESS, header)

    def _write(self, kind: Kind, event: dict[str, Any]) -> None:
        line: dict[str, Any] = {"v": SCHEMA_VERSION, "kind": kind, "seq": self._sequence, **event}
        self._sequence += 1
        if self._lost:
            line["lost"] = self._lost
        text = json.dumps(line, separators=(",", ":"), default=str) + "\n"
        data = (("\n" if self._torn else "") + text).encode()
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            self._lost += 1
            return
        self._written += written
        self._torn = written < len(data)
        self._lost = self._lost + 1 if self._torn else 0

    def _silence(self) -> None:
        self._closed = True
        self._window_start_ns = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._flight.close()


def _flight_recorder(path: Path) -> FlightRecorder:
    try:
        return FlightRecorder.at(path)
    except OSError:
        return FlightRecorder.private()


def _claim_folder(root: Path, process: str) -> tuple[Path, str]:
    """A folder of our own. A name that is taken gets a suffix: a clash must not stop a training job."""
    root.mkdir(parents=True, exist_ok=True)
    name, number = process, 1
    while True:
        try:
            (root / name).mkdir(mode=0o700)
            return root / name, name
        except FileExistsError:
            number += 1
            name = f"{process}.{number}"


def _fields(identity: ProcessIdentity) -> dict[str, Any]:
    return {name: getattr(identity, name) for name in identity.__dataclass_fields__}


def _recordable(phase: Phase) -> Phase:
    phase = Phase(phase)
    if phase in DERIVED_PHASES:
        raise EventError(f"{phase} is never recorded as a span: it follows from step() and from the failures")
    return phase


def _references(spans: Iterable[Span | str]) -> list[int | str]:
    return [span if isinstance(span, str) else span.reference for span in spans]


def _silence_in_child() -> None:
    for recorder in list(_recorders):
        recorder._lock = threading.RLock()
        with recorder._lock:
            if not recorder._closed:
                recorder._silence()


os.register_at_fork(after_in_child=_silence_in_child)
