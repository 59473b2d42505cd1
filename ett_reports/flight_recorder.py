"""The flight recorder: a small memory-mapped file with the steps of the open window, which outlives a kill -9."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ETTFLR01"
FILE_NAME = "flight.bin"
CAPACITY = 4096
"""Steps that one window can hold; a fuller one is written out early."""

_HEADER = struct.Struct("<8sqqqqqq")  # magic, window, start_ns, cursor_start, heartbeat_ns, count, reserved
_STEP = struct.Struct("<qqq")  # end_ns, cursor, data_wait_ns
_INT = struct.Struct("<q")
_WINDOW_AT, _START_AT, _CURSOR_AT, _HEARTBEAT_AT, _COUNT_AT = 8, 16, 24, 32, 40
NO_CURSOR = -1


@dataclass(frozen=True)
class FlightState:
    """What a flight recorder held: instants are monotonic nanoseconds of its process."""

    window: int
    start_ns: int
    cursor_start: int | None
    heartbeat_ns: int
    end_ns: tuple[int, ...]
    cursor: tuple[int, ...]
    data_wait_ns: tuple[int, ...]


class FlightRecorder:
    """Writes the open window in place. No system call, no allocation on disk: blocks are reserved at creation.

    Not thread-safe for steps (one loop per process); `beat` may be called from any thread.
    """

    def __init__(self, path: Path) -> None:
        size = _HEADER.size + CAPACITY * _STEP.size
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Without reserved blocks a full disk would be a SIGBUS in the middle of training.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.count = 0
        self._next = _HEADER.size
        _HEADER.pack_into(self._map, 0, MAGIC, 0, 0, NO_CURSOR, 0, 0, 0)

    def open_window(self, window: int, start_ns: int, cursor_start: int | None) -> None:
        """Forget the steps held and begin `window` at start_ns. The count goes first, so no reader mixes the two."""
        _INT.pack_into(self._map, _COUNT_AT, 0)
        self.count = 0
        self._next = _HEADER.size
        _INT.pack_into(self._map, _START_AT, start_ns)
        _INT.pack_into(self._map, _CURSOR_AT, NO_CURSOR if cursor_start is None else cursor_start)
        _INT.pack_into(self._map, _WINDOW_AT, window)

    def add(self, end_ns: int, cursor: int, data_wait_ns: int) -> int:
        """Record one completed step; returns how many the window holds. The caller flushes at CAPACITY."""
        position = self._next
        _STEP.pack_into(self._map, position, end_ns, cursor, data_wait_ns)
        self._next = position + 24
        self.count = count = self.count + 1
        # The count is written last: a kill in between leaves the step out, never half in.
        _INT.pack_into(self._map, _COUNT_AT, count)
        _INT.pack_into(self._map, _HEARTBEAT_AT, end_ns)
        return count

    def beat(self, now_ns: int) -> None:
        """Leave a sign of life."""
        _INT.pack_into(self._map, _HEARTBEAT_AT, now_ns)

    def state(self) -> FlightState:
        """The open window as it stands."""
        return _parse(bytes(self._map[: self._next]))

    def close(self) -> None:
        self._map.close()


def read_flight(path: Path) -> FlightState | None:
    """Read a flight recorder, also one being written. None if it is absent, foreign or cut short in its header."""
    for _ in range(3):
        try:
            data = path.read_bytes()
            again = path.read_bytes()[: _HEADER.size]
        except OSError:
            return None
        if len(data) < _HEADER.size or data[:8] != MAGIC:
            return None
        # A window that changed while we read has mixed steps: read again.
        if again[_WINDOW_AT:_CURSOR_AT] == data[_WINDOW_AT:_CURSOR_AT]:
            return _parse(data)
    return None


def trimmed(data: bytes) -> bytes:
    """Only the part in use: what is worth copying elsewhere."""
    count = max(0, min(_INT.unpack_from(data, _COUNT_AT)[0], CAPACITY))
    return data[: _HEADER.size + count * _STEP.size]


def _parse(data: bytes) -> FlightState:
    _, window, start_ns, cursor_start, heartbeat_ns, count, _ = _HEADER.unpack_from(data, 0)
    held = max(0, min(count, (len(data) - _HEADER.size) // _STEP.size))
    steps = [_STEP.unpack_from(data, _HEADER.size + index * _STEP.size) for index in range(held)]
    return FlightState(
        window=window,
        start_ns=start_ns,
        cursor_start=None if cursor_start == NO_CURSOR else cursor_start,
        heartbeat_ns=heartbeat_ns,
        end_ns=tuple(step[0] for step in steps),
        cursor=tuple(step[1] for step in steps),
        data_wait_ns=tuple(step[2] for step in steps),
    )
