"""The warning before a preemption: SIGTERM raises a flag that the ranks agree on; what cannot wait leaves at once."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from types import FrameType
from typing import Protocol

DEFAULT_GRACE_S = 30.0
SECOND_AFTER_S = 1.0
"""Two warnings within this time are one: a scheduler and its agent may both pass it on."""
_LEAVE_EARLY_S = 0.5


class Departure(Protocol):
    """What a preempted process does besides its orderly stop. Both are called on the flag's own thread."""

    def noticed(self, unix_ns: int) -> None:
        """The first warning came at `unix_ns`."""

    def leave(self, why: str) -> None:
        """End the process now; what is durable stands. Does not return in a real process."""


class PreemptionFlag:
    """Whether, and since when (unix ns), this process has been asked to stop.

    A save needs every rank at the same step, so in the loop the flag is only raised, and acted upon at the next step
    that the ranks agree on. A process leaves at once when there is nothing to save yet (`settle` was not called), at a
    second SIGTERM, and shortly before its grace time is over. Python runs signal handlers between two bytecodes of the
    main thread, which may sit in C code for minutes; so the signal's number is also written to a pipe, by C, and a
    thread reads that.
    """

    def __init__(self) -> None:
        self.noticed_ns: int | None = None
        self._grace_s = DEFAULT_GRACE_S
        self._noticed_at: float | None = None
        self._warned_at: float | None = None
        self._settled = False
        self._departure: Departure | None = None
        self._lock = threading.RLock()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)

    @classmethod
    def on_sigterm(cls) -> PreemptionFlag:
        """The flag that SIGTERM raises from now on; call it on the main thread, once in a process."""
        flag = cls()
        signal.signal(signal.SIGTERM, flag._notice)
        signal.set_wakeup_fd(flag._writable, warn_on_full_buffer=False)
        forks = _Forks()
        os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=forks.in_child)
        threading.Thread(target=flag._watch, name="preemption", daemon=True).start()
        return flag

    @property
    def raised(self) -> bool:
        return self.noticed_ns is not None

    @property
    def left_s(self) -> float | None:
        """Seconds until this process leaves, saved or not; None without a warning.

        That is a little before its grace time is over: to be killed would leave the end of its log unwritten.
        """
        if self._noticed_at is None:
            return None
        return self._noticed_at + self._grace_s - min(_LEAVE_EARLY_S, self._grace_s / 4) - time.monotonic()

    def depart_by(self, departure: Departure, *, grace_s: float) -> None:
        """Who ends the process at once, and how many seconds a warning leaves; it is asked now if one has come."""
        with self._lock:
            self._departure, self._grace_s = departure, grace_s
            if self.noticed_ns is not None:
                departure.noticed(self.noticed_ns)
                departure.leave("preempted before anything was to be saved")

    def settle(self) -> None:
        """The loop begins: from here on a warning waits for the ranks to agree."""
        with self._lock:
            self._settled = True

    def _notice(self, _signal: int, _frame: FrameType | None) -> None:
        if self.noticed_ns is None:
            self._noticed_at, self.noticed_ns = time.monotonic(), time.time_ns()

    # -- on the flag's thread -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            left_s = self.left_s
            readable, _, _ = select.select([self._readable], [], [], None if left_s is None else max(0.0, left_s))
            if not readable:
                self._leave("the grace time is over")
                return
            if signal.SIGTERM in os.read(self._readable, 64):
                self._warned()

    def _warned(self) -> None:
        with self._lock:
            now, first = time.monotonic(), self._warned_at
            if first is None:
                self._warned_at = now
                self._notice(signal.SIGTERM, None)
                assert self.noticed_ns is not None
                if self._departure is not None:
                    self._departure.noticed(self.noticed_ns)
                if not self._settled:
                    self._leave("preempted before anything was to be saved")
            elif now - first >= SECOND_AFTER_S:
                self._leave("warned a second time")

    def _leave(self, why: str) -> None:
        with self._lock:
            if self._departure is not None:
                self._departure.leave(why)


class _Forks:
    """A forked child is not a rank: a signal to it must not warn its parent, through the pipe that both hold.

    SIGTERM is held back over the fork, so that none reaches the child before it is back to what is usual.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    def before(self) -> None:
        self._thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.mask)

    def in_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._thread.mask)
