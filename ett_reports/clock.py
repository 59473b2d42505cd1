"""The two clocks of a process, behind one seam so that tests can own time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Nanoseconds, both. Durations come from `mono_ns`, placements between processes from `wall_ns`."""

    def mono_ns(self) -> int: ...

    def wall_ns(self) -> int: ...


class SystemClock:
    """The clocks of this machine."""

    mono_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
