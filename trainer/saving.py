"""What the loop saves: model, optimizers and this rank's progress, given to the checkpointer as one."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from trainer.checkpoint import Checkpointer, Progress
from trainer.model.trainee import Trainee
from trainer.progress import Position, ProgressiveQuality

GRACE_S = 60.0  # a preempted save that takes longer is worth less than the devices it holds


@dataclass(frozen=True, kw_only=True)
class ProgressSaver:
    """Saves of one attempt. Every method is called at the same step on every rank."""

    checkpointer: Checkpointer
    trainee: Trainee
    quality: ProgressiveQuality
    world_size: int
    window: tuple[str, str]

    def save(self, position: Position) -> None:
        """A checkpoint to resume from; blocks only until the state is copied, if saves are asynchronous."""
        self.checkpointer.save(position.step, self.trainee.state(), self._progress(position))

    def save_before_exit(self, position: Position) -> None:
        """The same, durable on every rank when it returns.

        Raises:
            CheckpointError: it is not durable in time.
        """
        progress = self._progress(position)
        self.checkpointer.save_before_exit(position.step, self.trainee.state(), progress, timeout_s=GRACE_S)

    def save_anchor(self, position: Position, reference: pa.Table) -> None:
        """What the run hands over to publishing and to the next run (paper IV-D).

        Raises:
            CheckpointError: it is not durable in time.
        """
        self.checkpointer.save_anchor(position.step, self.trainee.state(), self._progress(position), reference)

    def _progress(self, position: Position) -> Progress:
        return Progress(
            step=position.step,
            cursor=position.cursor,
            remaining=list(position.remaining),
            world_size=self.world_size,
            window=self.window,
            metrics=self.quality.to_json(),
        )
