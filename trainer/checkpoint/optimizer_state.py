"""Optimizer state that does not exist before the first step: it must, to be loaded into."""

from __future__ import annotations

import torch
from torchrec.optim.keyed import CombinedOptimizer


def materialize(optimizer: torch.optim.Optimizer) -> None:
    """Make the state that the first step would make, all parameters unchanged; an optimizer with state is left alone.

    Without this, restoring a fresh Adam finds no place for its moments and training goes on from zeroed ones. The
    fused optimizers of embedding tables have their state from the start.
    """
    if isinstance(optimizer, CombinedOptimizer):
        for _, part in optimizer.optimizers:
            materialize(part)
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or any(parameter.grad is not None for parameter in parameters):
        return
    rates = [group.get("lr") for group in optimizer.param_groups]
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:  # some optimizers move parameters even on zero gradients: weight decay
            group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if rate is not None:
            group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
