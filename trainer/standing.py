"""How far a running attempt is, and what of it is durable: read from what startup has made, beside the loop."""

from __future__ import annotations

from trainer.stage_file import Standing
from trainer.startup import Startup


class LiveStanding:
    """Called for the standing now, on any thread; it only reads what the loop and the checkpointer have set last."""

    def __init__(self, startup: Startup) -> None:
        self._position, self._checkpointer = startup.position, startup.saver.checkpointer
        self._planned = startup.plan.train_rows

    def __call__(self) -> Standing:
        durable = self._checkpointer.last_durable
        return Standing(
            step=self._position.step,
            cursor=self._position.cursor,
            planned_samples=self._planned,
            durable_step=None if durable is None else durable.step,
            durable_cursor=None if durable is None else durable.cursor,
            durable_unix_ns=None if durable is None else durable.unix_ns,
            estimated_save_s=self._checkpointer.estimated_save_s,
        )
