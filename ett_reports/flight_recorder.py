"""The flight recorder: a small memory-mapped file with the steps of the open window, which outlives a kill -9."""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ETTFLR01"
FILE_NAME = "flight.bin"
CAPACITY = 4096
"""Steps that one window can hold; a fuller one is written out early."""

_WORD = 8
_HEADER_WORDS = 7
_STEP_WORDS = 3  # end_ns, cursor, data_wait_ns
_MAGIC_AT, _WINDOW_AT, _START_AT, _CURSOR_AT, _HEARTBEAT_AT, _COUNT_AT = range(6)
_HEADER_BYTES = _HEADER_WORDS * _WORD
SIZE = (_HEADER_WORDS + CAPACITY * _STEP_WORDS) * _WORD
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

    Every word is stored through a memoryview, in one instruction. (`struct.pack_into` clears the bytes first: a kill
    in between would leave a count of 0.) Not thread-safe for steps, one loop per process; `beat` is for any thread.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._words[_MAGIC_AT] = int.from_bytes(MAGIC, sys.byteorder)
        self._words[_CURSOR_AT] = NO_CURSOR
        self.count = 0
        self._next = _HEADER_WORDS

    @classmethod
    def at(cls, path: Path) -> FlightRecorder:
        """A new one in a file. Raises OSError where the disk has no room for it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # Without reserved blocks a full disk would be a SIGBUS in the middle of training.
            os.posix_fallocate(descriptor, 0, SIZE)
            return cls(mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)

    @classmethod
    def private(cls) -> FlightRecorder:
        """Where there is no room on the disk: the same window in memory that dies with the process."""
        return cls(mmap.mmap(-1, SIZE))

    def open_window(self, window: int, start_ns: int, cursor_start: int | None) -> None:
        """Forget the steps held and begin `window` at start_ns. The count goes first, so no reader mixes the two."""
        words = self._words
        words[_COUNT_AT] = 0
        self.count = 0
        self._next = _HEADER_WORDS
        words[_START_AT] = start_ns
        words[_CURSOR_AT] = NO_CURSOR if cursor_start is None else cursor_start
        words[_WINDOW_AT] = window

    def add(self, end_ns: int, cursor: int, data_wait_ns: int) -> int:
        """Record one completed step; returns how many the window holds. The caller flushes at CAPACITY."""
        words, at = self._words, self._next
        words[at] = end_ns
        words[at + 1] = cursor
        words[at + 2] = data_wait_ns
        self._next = at + 3
        self.count = count = self.count + 1
        # The count is written last: a kill in between leaves the step out, never half in.
        words[_COUNT_AT] = count
        words[_HEARTBEAT_AT] = end_ns
        return count

    def beat(self, now_ns: int) -> None:
        """Leave a sign of life."""
        self._words[_HEARTBEAT_AT] = now_ns

    def state(self) -> FlightState:
        """The open window as it stands."""
        return _parse(bytes(self._memory[: self._next * _WORD]))

    def close(self) -> None:
        self._words.release()
        self._memory.close()


def read_flight(path: Path) -> FlightState | None:
    """Read a flight recorder, also one being written. None if it is absent, foreign or cut short in its header."""
    for _ in range(3):
        try:
            data = path.read_bytes()
            again = path.read_bytes()[:_HEADER_BYTES]
        except OSError:
            return None
        if len(data) < _HEADER_BYTES or data[:_WORD] != MAGIC:
            return None
        # A window that changed while we read has mixed steps: read again.
        if again[_WORD : 3 * _WORD] == data[_WORD : 3 * _WORD]:
            return _parse(data)
    return None


def trimmed(data: bytes) -> bytes:
    """Only the part in use: what is worth copying elsewhere."""
    count = int.from_bytes(data[_COUNT_AT * _WORD : (_COUNT_AT + 1) * _WORD], sys.byteorder, signed=True)
    return data[: _HEADER_BYTES + max(0, min(count, CAPACITY)) * _STEP_WORDS * _WORD]


def _parse(data: bytes) -> FlightState:
    words = memoryview(data[: len(data) - len(data) % _WORD]).cast("q")
    cursor_start = words[_CURSOR_AT]
    held = max(0, min(words[_COUNT_AT], (len(words) - _HEADER_WORDS) // _STEP_WORDS))
    steps = words[_HEADER_WORDS : _HEADER_WORDS + held * _STEP_WORDS].tolist()
    return FlightState(
        window=words[_WINDOW_AT],
        start_ns=words[_START_AT],
        cursor_start=None if cursor_start == NO_CURSOR else cursor_start,
        heartbeat_ns=words[_HEARTBEAT_AT],
        end_ns=tuple(steps[0::_STEP_WORDS]),
        cursor=tuple(steps[1::_STEP_WORDS]),
        # Checked here and not in the hot loop: a negative wait must not cost the whole window.
        data_wait_ns=tuple(max(0, wait) for wait in steps[2::_STEP_WORDS]),
    )
