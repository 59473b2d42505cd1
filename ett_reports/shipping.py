"""Shipping: the node's launcher agent copies node-local logs to the run folder, and sweeps what a dead process left.

The copy of a segment is always a prefix of the original that ends at a line: a pass writes the missing lines at their
own offset, so that a pass which was interrupted, repeated or raced by another gives the same bytes. (An object store
has no append: there a segment is put whole; segments are 1 MiB, so that this stays cheap.)
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ett_reports.events import SCHEMA_VERSION, Kind
from ett_reports.flight_recorder import FILE_NAME, read_flight, trimmed

SWEPT_NAME = "swept.jsonl"
_PREFIX = 4096
_ASIDE = ".writing"


class Shipper:
    """Copies `local` (one folder per process) to `remote`. Call `ship` about once a second, `sweep` at the end.

    Raises OSError when the run folder cannot be written; what is missing then goes with the next pass.
    """

    def __init__(self, local: Path, remote: Path) -> None:
        self.local = Path(local)
        self.remote = Path(remote)
        self._targets: dict[str, Path] = {}
        self._shipped: dict[Path, int] = {}
        self._flights: dict[Path, bytes] = {}

    def ship(self) -> int:
        """One pass over all processes; returns the bytes that were copied."""
        return sum(self._ship_process(folder) for folder in self._folders())

    def sweep(self) -> int:
        """The final pass, once every process is dead: takes up their flight recorders, then ships."""
        for folder in self._folders():
            _write_swept(folder)
            _remove_torn(folder)
        copied = self.ship()
        for target in self._targets.values():
            _remove_torn(target)
        return copied

    def _folders(self) -> list[Path]:
        if not self.local.is_dir():
            return []
        return sorted(folder for folder in self.local.iterdir() if folder.is_dir())

    def _ship_process(self, folder: Path) -> int:
        segments = sorted(folder.glob("*.jsonl"))
        if not segments:
            return 0
        target = self._targets.get(folder.name)
        if target is None:
            target = self._targets[folder.name] = _own_target(segments[0], self.remote, folder.name)
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        copied = sum(self._ship_segment(segment, target / segment.name) for segment in segments)
        return copied + self._ship_flight(folder / FILE_NAME, target / FILE_NAME)

    def _ship_segment(self, source: Path, target: Path) -> int:
        done = self._shipped.get(target)
        if done is None:
            done = target.stat().st_size if target.exists() else 0
        size = source.stat().st_size
        if size <= done:
            self._shipped[target] = done
            return 0
        with source.open("rb") as file:
            file.seek(done)
            data = file.read(size - done)
        whole_lines = data[: data.rfind(b"\n") + 1]
        if whole_lines:
            _write_at(target, done, whole_lines)
        self._shipped[target] = done + len(whole_lines)
        return len(whole_lines)

    def _ship_flight(self, source: Path, target: Path) -> int:
        """The open window and the last sign of life, whole, only when they have moved."""
        if read_flight(source) is None:
            return 0
        data = trimmed(source.read_bytes())
        if self._flights.get(target) == data:
            return 0
        _replace(target, data)
        self._flights[target] = data
        return len(data)


def _own_target(first: Path, remote: Path, name: str) -> Path:
    """The folder for a process; one that holds another incarnation's log of the same name is left alone."""
    with first.open("rb") as file:
        beginning = file.read(_PREFIX)
    number = 1
    while True:
        target = remote / (name if number == 1 else f"{name}.{number}")
        copy = target / first.name
        if not copy.exists():
            return target
        with copy.open("rb") as file:
            known = file.read(_PREFIX)
        if beginning.startswith(known) or known.startswith(beginning):
            return target
        number += 1


def _write_swept(folder: Path) -> None:
    """Turn a flight recorder into one line of the log. A process that said goodbye left nothing to take up."""
    target = folder / SWEPT_NAME
    state = read_flight(folder / FILE_NAME)
    if target.exists() or state is None or _said_goodbye(folder):
        return
    event = {
        "v": SCHEMA_VERSION,
        "kind": Kind.SWEEP,
        "heartbeat_ns": max(0, state.heartbeat_ns),
        "window": state.window,
        "start_ns": state.start_ns,
        "cursor_start": state.cursor_start,
        "end_ns": [end - state.start_ns for end in state.end_ns],
        "cursor": state.cursor,
        "data_wait_ns": state.data_wait_ns,
    }
    _replace(target, (json.dumps(event, separators=(",", ":")) + "\n").encode())


def _remove_torn(folder: Path) -> None:
    """Delete what a shipper that was killed in the middle of `_replace` left; at the end no other one is at work."""
    for left in folder.glob(f".*{_ASIDE}"):
        left.unlink(missing_ok=True)


def _said_goodbye(folder: Path) -> bool:
    segments = sorted(path for path in folder.glob("*.jsonl") if path.name != SWEPT_NAME)
    if not segments:
        return False
    with segments[-1].open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 512))
        last = file.read().rstrip(b"\n").rsplit(b"\n", 1)[-1]
    return b'"kind":"end"' in last


def _write_at(target: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes) -> None:
    """Write aside, then rename: no reader sees half a file."""
    aside = target.with_name(f".{target.name}.{os.getpid()}{_ASIDE}")
    aside.write_bytes(data)
    aside.replace(target)
