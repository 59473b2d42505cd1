"""The warning before a preemption: SIGTERM sets a flag, which the loop agrees on with the other ranks."""

from __future__ import annotations

import signal
import time
from types import FrameType


class PreemptionFlag:
    """Whether, and since when (unix ns), this process has been asked to stop.

    A signal handler only stores the time: a save needs every rank at the same step, so the loop acts on it.
    """

    def __init__(self) -> None:
        self.noticed_ns: int | None = None

    @classmethod
    def on_sigterm(cls) -> PreemptionFlag:
        """The flag that SIGTERM raises from now on; call it on the main thread."""
        flag = cls()
        signal.signal(signal.SIGTERM, flag._notice)
        return flag

    @property
    def raised(self) -> bool:
        return self.noticed_ns is not None

    def _notice(self, _signal: int, _frame: FrameType | None) -> None:
        if self.noticed_ns is None:
            self.noticed_ns = time.time_ns()
