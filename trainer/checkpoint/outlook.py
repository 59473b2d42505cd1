"""What is durable now, and how long one more save would take: what a preemption and a scheduler need to know."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from trainer.checkpoint.manifest import CheckpointRef
from trainer.checkpoint.restore import Restored

_RECENT_SAVES = 5


@dataclass(frozen=True, kw_only=True)
class Durable:
    """The newest state that a resume would find. `seconds` from the start of its save until it was durable."""

    step: int
    cursor: int
    unix_ns: int
    seconds: float


class Outlook:
    """Fed with what this attempt restored and committed; asked at any time from any thread, and never waits."""

    def __init__(self) -> None:
        self.last_durable: Durable | None = None
        self._restored_s: float | None = None
        self._measured: deque[float] = deque(maxlen=_RECENT_SAVES)

    def restored(self, found: Restored) -> None:
        self._restored_s = found.manifest.save_seconds
        self.last_durable = Durable(
            step=found.ref.step,
            cursor=found.ref.cursor,
            unix_ns=found.manifest.created_unix_ns,
            seconds=found.manifest.save_seconds,
        )

    def committed(self, ref: CheckpointRef, *, seconds: float) -> None:
        self._measured.append(seconds)
        self.last_durable = Durable(step=ref.step, cursor=ref.cursor, unix_ns=time.time_ns(), seconds=seconds)

    def estimated_save_s(self, *, unfinished_since_s: float | None) -> float | None:
        """Seconds by the slowest of the recent saves, else by the one restored from; None if nothing was measured.

        What a save that began `unfinished_since_s` ago still needs comes first.
        """
        measured = list(self._measured)
        one = max(measured) if measured else self._restored_s
        if one is None or unfinished_since_s is None:
            return one
        return one + max(0.0, one - unfinished_since_s)
