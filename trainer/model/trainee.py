"""The model under training: its optimizers, one training step, predictions, and the state that a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from trainer.dpp.batch import Batch
from trainer.model.schedule import WarmUp


@dataclass(frozen=True)
class Trained:
    """What a step gives: `logits` [rows] of the batch's own rows from before the update (a row is predicted before it
    is learnt from), and the mean `loss` over them, a scalar; both on the device."""

    logits: torch.Tensor
    loss: torch.Tensor


class Trainee:
    """A sharded model with Adam on the dense parameters and the tables' optimizer fused into their backward.

    Args:
        warmup_steps: steps over which both learning rates rise to their values; 0 for none (see `WarmUp`).
    """

    def __init__(self, dmp: DistributedModelParallel, *, dense_learning_rate: float, warmup_steps: int = 0) -> None:
        self.dmp = dmp
        dense = dict(in_backward_optimizer_filter(dmp.named_parameters()))
        self._optimizer = KeyedOptimizerWrapper(
            dense, lambda parameters: torch.optim.Adam(parameters, lr=dense_learning_rate, fused=True)
        )
        self._materialize_moments()
        self._schedule = WarmUp([self._optimizer, dmp.fused_optimizer], warmup_steps=warmup_steps)

    def step(self, batch: Batch) -> Trained:
        """Train on one batch, of as many rows on every rank (`trainer.padding`). Collective."""
        self._schedule.before_step()
        self._optimizer.zero_grad()
        logits: torch.Tensor = self.dmp(batch.dense, batch.sparse)[: batch.rows]
        loss = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum") / max(batch.rows, 1)
        loss.backward()
        self._optimizer.step()
        self._schedule.after_step()
        return Trained(logits.detach(), loss.detach())

    @torch.no_grad()
    def predict(self, batch: Batch) -> torch.Tensor:
        """Logits of the batch's own rows; of as many rows on every rank. Collective."""
        # The module inside DDP: its forward hook would exchange buffers for a batch that no backward follows.
        logits: torch.Tensor = self.dmp.module(batch.dense, batch.sparse)[: batch.rows]
        return logits

    def state(self) -> dict[str, Any]:
        """Tensors by name, shared with the model: read to save, written in place to restore.

        `model` has the names of the unsharded model. Learning rates are not in it: the spec is their one source; the
        schedule is, which says how far they have come.
        """
        return {
            "model": self.dmp.state_dict(),
            "dense_optimizer": dict(self._optimizer.state_dict()["state"]),
            "sparse_optimizer": dict(self.dmp.fused_optimizer.state_dict()["state"]),
            "schedule": {"steps": self._schedule.steps},
        }

    def _materialize_moments(self) -> None:
        """Give Adam its state before the first step, at zero, so that a checkpoint can always be loaded into it."""
        self._optimizer.init_state([])
        self._optimizer.zero_grad()
        for moments in self._optimizer.state_dict()["state"].values():
            for tensor in moments.values():
                tensor.zero_()
