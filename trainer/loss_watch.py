"""Watches that every loss is finite, without waiting for a device; a loss that is not ends the job with its rows named.

On a GPU the flag of a step is read one step later: it was copied behind the step's kernels, and the next step is queued
by then, so reading it idles nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.dpp.cursor import Interval
from trainer.dpp.plan import ReadPlan


class NonFiniteLossError(Exception):
    """A loss that is NaN or infinite: the step and rank, and the rows of its batch. No checkpoint holds its update."""


@dataclass(frozen=True)
class _Pending:
    """The loss of one step on its way to the host."""

    step: int
    rows: Sequence[Interval]
    loss: torch.Tensor
    arrived: torch.cuda.Event | None

    def value(self) -> float:
        if self.arrived is not None:
            self.arrived.synchronize()
        return float(self.loss)


class LossWatch:
    """The losses of one rank."""

    def __init__(self, *, rank: int, plan: ReadPlan, device: torch.device) -> None:
        self._rank, self._plan = rank, plan
        self._on_gpu = device.type == "cuda"
        self._pending: deque[_Pending] = deque()
        self._found: str | None = None

    def add(self, loss: torch.Tensor, *, step: int, rows: Sequence[Interval]) -> None:
        """Take in a step's loss, a scalar on the device, and the rows it is of."""
        arrived = None
        held = loss.detach()
        if self._on_gpu:
            held = torch.empty((), dtype=held.dtype, pin_memory=True).copy_(held, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._pending.append(_Pending(step, rows, held, arrived))

    def so_far(self) -> str | None:
        """What is wrong, as far as it can be known without waiting for the step that runs now."""
        return self._settle(leave=1 if self._on_gpu else 0)

    def settled(self) -> str | None:
        """What is wrong with any step so far; waits for all."""
        return self._settle(leave=0)

    def _settle(self, *, leave: int) -> str | None:
        while len(self._pending) > leave:
            pending = self._pending.popleft()
            value = pending.value()
            if self._found is None and value - value != 0:  # as isfinite: NaN and infinity less themselves are NaN
                self._found = (
                    f"the loss of rank {self._rank} in step {pending.step} is {value}, of its batch "
                    f"{self._plan.describe(pending.rows)}. Look at these rows, or lower the learning rates; "
                    "the next attempt resumes from the last checkpoint, which does not hold this step"
                )
        return self._found
