"""Compiles the parts of a model that hold no tables, once, on a synthetic batch, before the loop."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface


class ShapePolicy(StrEnum):
    """What the compiler is told about the batch dimension."""

    MARKED = "marked"  # mark_dynamic: one graph for every batch size
    OBSERVED = "observed"  # nothing, torch's default: specialized to the first size, compiled again at the next


class CompiledForward:
    """Stands in for a module's `forward`: compiled for training, eager where a graph would not pay or not fit.

    Eager are evaluation (another graph for a few batches) and batches below 2 rows (sizes 0 and 1 always specialize).
    Dimension 0 of every tensor argument is the batch.
    """

    def __init__(self, forward: Callable[..., torch.Tensor], *, shapes: ShapePolicy) -> None:
        self._eager = forward
        self._compiled: Callable[..., torch.Tensor] = torch.compile(forward)
        self._shapes = shapes
        self.last_output: torch.Tensor | None = None
        self.keeps_output = False

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        rows = min((tensor.shape[0] for tensor in tensors if tensor.dim()), default=0)
        if rows < 2 or not torch.is_grad_enabled():
            return self._eager(*args, **kwargs)
        if self._shapes is ShapePolicy.MARKED:
            for tensor in tensors:
                if tensor.dim():
                    torch._dynamo.mark_dynamic(tensor, 0)
        output = self._compiled(*args, **kwargs)
        if self.keeps_output:
            self.last_output = output
        return output


def install(model: nn.Module, *, shapes: ShapePolicy) -> list[CompiledForward]:
    """Replace the forward of every child without embedding tables; names and state stay as they are.

    The parts that take ids stay eager: traced with them, a model gives more graphs and breaks constraints on sizes.
    """
    # Splitting at DDP's buckets would compile several graphs, to overlap a gradient exchange that is small here.
    torch._dynamo.config.optimize_ddp = False
    installed = []
    for child in model.children():
        if not _has_tables(child) and any(True for _ in child.parameters()):
            child.forward = CompiledForward(child.forward, shapes=shapes)
            installed.append(child.forward)
    return installed


def compile_now(model: nn.Module, forwards: list[CompiledForward], dense: torch.Tensor, sparse: Any) -> None:
    """Compile forward and backward of `forwards` by one pass of `model` over a synthetic batch. Collective.

    Nothing learns from it: gradients are taken of the compiled parts' parameters only and thrown away, so neither the
    optimizers nor the update fused into the tables' backward run. `model` is the one inside DDP, whose bookkeeping must
    not see a forward without its backward.
    """
    parameters = [parameter for parameter in _compiled_parameters(model, forwards) if parameter.requires_grad]
    for forward in forwards:
        forward.keeps_output = True
    try:
        with torch.enable_grad():
            model(dense, sparse)
            outputs = [forward.last_output for forward in forwards if forward.last_output is not None]
            if outputs and parameters:
                total = torch.stack([output.float().sum() for output in outputs]).sum()
                torch.autograd.grad(total, parameters, allow_unused=True)
    finally:
        for forward in forwards:
            forward.keeps_output, forward.last_output = False, None


def _compiled_parameters(model: nn.Module, forwards: list[CompiledForward]) -> list[nn.Parameter]:
    return [
        parameter
        for child in model.children()
        if any(child.forward is forward for forward in forwards)
        for parameter in child.parameters()
    ]


def _has_tables(module: nn.Module) -> bool:
    kinds = (EmbeddingBagCollectionInterface, EmbeddingCollectionInterface, ShardedModule)
    return any(isinstance(part, kinds) for part in module.modules())
