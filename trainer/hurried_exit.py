"""How a rank leaves without its main thread: preempted with no time left, hung, or superseded by a newer attempt."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from ett_reports.events import Cause, Point
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt, SupersededError
from trainer.launch.jobs import EXIT_HUNG, EXIT_PREEMPTED
from trainer.preempted_marker import PreemptedMarker
from trainer.stage_file import Standing

EXIT_SUPERSEDED = 1
PEERS_SHOW_S = 1.0
"""A hung rank stays so long: its peers hang in the same collective, and once its sockets close they fail with another
error before they have shown where they stood."""

log = logging.getLogger(__name__)


class HangError(Exception):
    """No progress where there should be some; the log holds every thread's stack."""


class HurriedExit:
    """Ends this process from another thread. What is durable stands; the log tells why, and ends as it should."""

    def __init__(self, attempt: Attempt, recorder: Recorder) -> None:
        self._attempt, self._recorder = attempt, recorder
        self._noticed_ns: int | None = None
        self._standing: Callable[[], Standing] | None = None

    def follow(self, standing: Callable[[], Standing]) -> None:
        """From now on there is progress to be told of."""
        self._standing = standing

    def noticed(self, unix_ns: int) -> None:
        """A preemption is announced. Recorded now: this process may be killed before it can do anything else."""
        self._noticed_ns = unix_ns
        self._recorder.point(Point.PREEMPTION_NOTICE, wall_ns=unix_ns)

    def leave(self, why: str) -> NoReturn:
        """Exit as preempted, with nothing saved since the last durable checkpoint."""
        try:
            log.warning("leaving at once: %s", why)
            self._recorder.point(Point.PREEMPTION_SAVE_SKIPPED, reason=why)
            standing = None if self._standing is None else self._standing()
            marker = PreemptedMarker(
                attempt=self._attempt.number,
                step=None if standing is None else standing.step,
                cursor=None if standing is None else standing.cursor,
                saved=False,
                reason=why,
                noticed_unix_ns=self._noticed_ns,
                left_unix_ns=time.time_ns(),
            )
            with contextlib.suppress(OSError):  # the exit code says it too
                marker.write_if_first(self._attempt.run_folder)
        finally:
            self._exit(EXIT_PREEMPTED)

    def hung(self, hang: object) -> NoReturn:
        """Show every thread's stack, and exit as hung."""
        message = f"rank {self._attempt.place.rank} of attempt {self._attempt.number} hangs: {hang}"
        error = HangError(message)
        with contextlib.suppress(OSError, ValueError):
            print(f"{message}; all threads, the newest call first:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(all_threads=True)
        self._recorder.point(Point.FAILURE, cause=Cause.HANG, message=message)
        self._attempt.explain(error, Cause.HANG, trace=_main_stack())
        time.sleep(PEERS_SHOW_S)
        self._exit(EXIT_HUNG)

    def superseded(self, newer: int) -> NoReturn:
        """A newer attempt has begun: this one must not go on beside it."""
        error = SupersededError(self._attempt.number, newer)
        log.error("%s", error)
        self._recorder.point(Point.FAILURE, cause=Cause.INFRASTRUCTURE, message=str(error))
        self._attempt.explain(error, Cause.INFRASTRUCTURE)
        self._exit(EXIT_SUPERSEDED)

    def _exit(self, status: int) -> NoReturn:
        self._recorder.close()
        sys.stderr.flush()
        os._exit(status)


def _main_stack() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
