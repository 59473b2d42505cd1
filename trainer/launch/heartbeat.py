"""Signs of life of a job's ranks, read from their node-local event files."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ett_reports.flight_recorder import FILE_NAME, read_flight

LAUNCHER_PREFIX = "launcher-"


def last_sign_of_life(events: Path) -> int | None:
    """When any rank was last seen alive (Unix ns); None if none ever wrote.

    A flight recorder's heartbeat is on the machine's monotonic clock, which we share; a mapped file's modification
    time does not move with it. For trainers without one the event files' modification times count.
    """
    offset = time.time_ns() - time.monotonic_ns()
    signs = []
    for path in events.glob("*/*"):
        if path.parent.name.startswith(LAUNCHER_PREFIX):
            continue
        if path.name == FILE_NAME:
            flight = read_flight(path)
            if flight is not None and flight.heartbeat_ns:
                signs.append(flight.heartbeat_ns + offset)
        else:
            with contextlib.suppress(FileNotFoundError):
                signs.append(path.stat().st_mtime_ns)
    return max(signs, default=None)
