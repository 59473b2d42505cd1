"""The learning-rate schedule: a linear warm-up, then constant, for dense and sparse rates alike.

Not torch's LambdaLR nor TorchRec's WarmupOptimizer: the first keeps its count in the process, the second in the state
of each fused optimizer, whose number changes with the sharding plan; a resume over other ranks could not go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec.optim.keyed import KeyedOptimizer


class WarmUp:
    """Takes step i (from 0) at min(1, (i + 1) / warmup_steps) of each optimizer's own rate.

    `steps` counts the steps taken. It is a tensor of the training state, saved and restored with the weights, so that a
    resume continues the schedule exactly. An anchor hands it over too: a warm-started run, whose moments are formed,
    does not warm up again.
    """

    def __init__(self, optimizers: Sequence[KeyedOptimizer], *, warmup_steps: int) -> None:
        self.steps = torch.zeros((), dtype=torch.int64)
        self._optimizers = optimizers
        self._warmup_steps = warmup_steps
        self._rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        self._applied = 1.0

    @property
    def factor(self) -> float:
        """What the coming step's rates are multiplied with."""
        return min(1.0, (int(self.steps) + 1) / self._warmup_steps) if self._warmup_steps else 1.0

    def before_step(self) -> None:
        """Set the coming step's rates, where they change."""
        factor = self.factor
        if factor == self._applied:
            return
        for optimizer, rates in zip(self._optimizers, self._rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.zero_grad()  # by which a fused optimizer hands the rate on to its kernels
        self._applied = factor

    def after_step(self) -> None:
        """Count a step."""
        self.steps += 1
