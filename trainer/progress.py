"""How far a rank is, and how well it predicted on the way: what the loop moves on and a checkpoint saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.dpp.cursor import Interval
from trainer.metrics import QualityAccumulator


@dataclass
class Position:
    """How far this attempt is: `step` and `cursor` are the job's, `remaining` is what this rank has still to read."""

    step: int
    cursor: int
    remaining: Sequence[Interval]


class ProgressiveQuality:
    """Quality of predictions made before their rows were learnt from: since the last report, and over the whole run."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        # Batches are added to the run in their order, and a window is a difference: sums of sums, taken whenever a
        # report happens to be due, would round otherwise in every attempt.
        self._run = QualityAccumulator(device)
        self._settled = self._run.sums.clone()

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in this rank's batch."""
        self._run.add(logits, labels)

    def settle(self) -> torch.Tensor:
        """End the window; returns the sums of it and of the run, `[2, N]` on the CPU, to be added over the ranks."""
        both = torch.stack([self._run.sums - self._settled, self._run.sums]).cpu()
        self._settled.copy_(self._run.sums)
        return both

    def to_json(self) -> dict[str, Any]:
        """This rank's sums over the run so far, for a checkpoint."""
        return {"progressive": self._run.sums.tolist()}

    def load_json(self, metrics: Mapping[str, Any]) -> None:
        """Go on from the sums in a checkpoint: this rank's own, or on one rank of another world those of all.

        Raises:
            ValueError: they were saved by a release with other bins.
        """
        self._run.load(metrics["progressive"])
        self._settled.copy_(self._run.sums)
