"""The environment that the kernel shows of a process: overwritten, so that a forked rank is known by its job's.

`/proc/PID/environ` is the memory that `exec` filled, whatever the process has set since. A rank must be found by what
stands there after its supervisor and its keeper were killed (`trainer.launch.processes.marked`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

ROOM_VARIABLE = "ETT_STANDBY_ROOM"
"""Filler in the standby's environment: it leaves room for a rank's."""
ROOM = "-" * (96 << 10)
_ENV_START, _ENV_END = 47, 48  # fields 50 and 51 of /proc/self/stat (proc(5)), counted from behind the command's name


class EnvironmentAreaError(Exception):
    """The area cannot be found or is too small."""


def show(environment: Mapping[str, str], first: tuple[str, ...]) -> None:
    """Have `/proc/self/environ` say `environment`; what does not fit is left out, but never one of `first`.

    Nothing may refer to the old strings: `os.environ` must have been cleared before.

    Raises:
        EnvironmentAreaError: it does not say so now.
    """
    ordered = sorted(environment, key=lambda name: name not in first)
    entries = [f"{name}={environment[name]}".encode(errors="surrogateescape") + b"\0" for name in ordered]
    start, end = _area()
    kept, length = [], 0
    for entry in entries:
        if length + len(entry) < end - start:
            kept.append(entry)
            length += len(entry)
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, b"".join(kept), length)
    shown = set(Path("/proc/self/environ").read_bytes().split(b"\0"))
    missing = [name for name, entry in zip(ordered, entries, strict=True) if name in first and entry[:-1] not in shown]
    if missing:
        raise EnvironmentAreaError(f"the environment has no room for {', '.join(missing)} ({end - start} bytes)")


def _area() -> tuple[int, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        raise EnvironmentAreaError("/proc/self/stat does not say where the environment is")
    return start, end
