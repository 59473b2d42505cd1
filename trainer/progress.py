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
        self._window, self._run = QualityAccumulator(device), QualityAccumulator(device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in this rank's batch."""
        self._window.add(logits, labels)

    def settle(self) -> torch.Tensor:
        """Move the window into the run; returns the sums of both, `[2, N]` on the CPU, to be added over the ranks."""
        self._run.sums.add_(self._window.sums)
        both = torch.stack([self._window.sums, self._run.sums]).cpu()
        self._window.clear()
        return both

    def to_json(self) -> dict[str, Any]:
        """This rank's sums over the run so far, for a checkpoint."""
        return {"progressive": (self._run.sums + self._window.sums).tolist()}

    def load_json(self, metrics: Mapping[str, Any]) -> None:
        """Go on from the sums in a checkpoint; for one rank only, since they are all ranks' together.

        Raises:
            ValueError: they were saved by a release with other bins.
        """
        self._run.load(metrics["progressive"])
