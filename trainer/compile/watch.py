"""Sees every compilation: its time goes to compilation and never to training (public reports K17 and K18)."""

from __future__ import annotations

import logging
import time

import torch._dynamo
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.utils import get_metrics_context

from ett_reports.events import Phase
from ett_reports.recorder import Recorder
from trainer.ranks import LONGEST_COMPILATION
from trainer.watchdog import Watchdog

log = logging.getLogger(__name__)


COMPILE_SILENCE_S = LONGEST_COMPILATION.total_seconds()
"""Compiling one large graph takes an hour and more inside a single call (paper IV-B), which is no hang."""


class CompileWatch:
    """Counts compilations from Dynamo's callbacks; from `enter_loop` on it records each as a recompile.

    Before the loop the startup's own compile span covers them. Compilations run on the thread that needs them, so the
    recorded spans lie inside the step that they hold up.
    """

    def __init__(self, recorder: Recorder, watchdog: Watchdog) -> None:
        self._recorder, self._watchdog = recorder, watchdog
        self._in_loop = False
        self._start_ns = 0
        self._reason = ""
        self.compilations = 0
        self.recompilations = 0

    def start(self) -> None:
        """Begin to watch this process's compilations."""
        callback_handler.register_start_callback(self._started)
        callback_handler.register_end_callback(self._ended)

    def stop(self) -> None:
        """Watch no longer."""
        callback_handler.remove_start_callback(self._started)
        callback_handler.remove_end_callback(self._ended)

    def enter_loop(self) -> None:
        """From here on a compilation is a recompile."""
        self._in_loop = True

    def _started(self, _: CallbackArgs) -> None:
        self._start_ns = time.monotonic_ns()
        self._reason = recompile_reason()
        if self._in_loop:  # until the step ends: the step's own limit would take it for a hang
            self._watchdog.entered(Phase.RECOMPILE, COMPILE_SILENCE_S)

    def _ended(self, args: CallbackArgs) -> None:
        self.compilations += 1
        compile_id = str(args.compile_id)
        if self._in_loop:
            self.recompilations += 1
            trigger = args.callback_trigger.name.lower()
            self._recorder.record_span(
                Phase.RECOMPILE,
                self._start_ns,
                time.monotonic_ns(),
                compile_id=compile_id,
                trigger=trigger,
                reason=self._reason,
            )
            log.warning("compiled again in the loop (%s): %s", compile_id, self._reason or trigger)
        limit = torch._dynamo.config.recompile_limit
        if reaches_limit(compile_id, limit=limit):
            self._recorder.point("recompile_limit", compile_id=compile_id, limit=limit, reason=self._reason)
            log.warning(
                "compilation %s is the last that the recompile limit of %d allows for its code: from the next shape "
                "on that runs eagerly; switch dynamic_shapes on, or mark what varies. Last reason: %s",
                compile_id,
                limit,
                self._reason or "not known",
            )


def recompile_reason() -> str:
    """Which guard failed, of the compilation that runs on this thread; empty for a first one and for backwards."""
    held: dict[str, object] = getattr(get_metrics_context(), "_metrics", {})  # nothing public has it before the end
    return str(held.get("recompile_reason") or "")[:500]


def reaches_limit(compile_id: str, *, limit: int) -> bool:
    """Whether `frame/compile` is the last compilation that the limit allows for its frame.

    >>> reaches_limit("0/7", limit=8), reaches_limit("[1/6]", limit=8), reaches_limit("", limit=8)
    (True, False, False)
    """
    _, _, count = compile_id.strip("[]").rpartition("/")
    digits = count.split("_")[0]
    return digits.isdigit() and int(digits) + 1 == limit
