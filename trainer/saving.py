"""What the loop saves: model, optimizers and this rank's progress, given to the checkpointer as one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pyarrow as pa
import torch

from trainer.checkpoint import Checkpointer, CheckpointError, Progress, RankProgress
from trainer.checkpoint.errors import PoisonedStateError
from trainer.checkpoint_section import OnFailure
from trainer.model.trainee import Trainee
from trainer.progress import Position, ProgressiveQuality
from trainer.random_states import capture_generators

log = logging.getLogger(__name__)


class BackgroundSaveError(Exception):
    """A save in the background failed, and that is to end the job; names the rank and the cause."""


@dataclass(kw_only=True)
class ProgressSaver:
    """Saves of one attempt. Every method is called at the same step on every rank.

    `patience_s`: how long a save may block the loop before that counts as hung.
    """

    checkpointer: Checkpointer
    trainee: Trainee
    quality: ProgressiveQuality
    device: torch.device
    world_size: int
    window: tuple[str, str]
    on_failure: OnFailure
    patience_s: float
    _told: CheckpointError | None = field(default=None, init=False)

    @property
    def busy(self) -> bool:
        """Whether a save now would block the loop until this rank's last one is written."""
        return self.checkpointer.busy

    def save(self, position: Position) -> None:
        """A checkpoint to resume from; blocks only until the state is copied, if saves are asynchronous."""
        self.checkpointer.save(position.step, self.trainee.state(), self._progress(position))

    def save_before_exit(self, position: Position, *, timeout_s: float) -> None:
        """The same, durable on every rank when it returns, `timeout_s` seconds from now at the latest.

        Raises:
            CheckpointError: it is not durable in time.
        """
        progress = self._progress(position)
        self.checkpointer.save_before_exit(position.step, self.trainee.state(), progress, timeout_s=timeout_s)

    def save_anchor(self, position: Position, reference: pa.Table) -> None:
        """What the run hands over to publishing and to the next run (paper IV-D).

        Raises:
            CheckpointError: it is not durable in time.
        """
        self.checkpointer.save_anchor(position.step, self.trainee.state(), self._progress(position), reference)

    def fatal_failure(self) -> CheckpointError | None:
        """The failure of the last save in the background, as far as this rank knows it and if it is to end the job.

        The spec decides; but to train on with NaN in the state has no use. A failure that training goes on after is
        told once. Waits for nothing: the loop asks before every step.
        """
        failure = self.checkpointer.failure
        if failure is None or self.on_failure is OnFailure.FAIL or isinstance(failure, PoisonedStateError):
            return failure
        if failure is not self._told:
            log.warning("a save failed, training goes on (checkpoint.on_failure: go_on): %s", failure)
            self._told = failure
        return None

    def _progress(self, position: Position) -> Progress:
        own = RankProgress(
            remaining=tuple(position.remaining),
            metrics=self.quality.to_json(),
            random=capture_generators(self.device),
        )
        return Progress(
            step=position.step, cursor=position.cursor, world_size=self.world_size, window=self.window, ranks=(own,)
        )
