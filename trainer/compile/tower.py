"""Compiles the parts of a model that hold no tables: which these are, with which shapes, and what stays eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.utils._pytree import tree_leaves
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface


class ShapePolicy(StrEnum):
    """What the compiler is told about the batch dimension."""

    MARKED = "marked"  # mark_dynamic: one graph for every batch size
    OBSERVED = "observed"  # nothing, torch's default: specialized to the first size, compiled again at the next


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the parts are compiled: their shapes, and the modules, by path in the model, that are left out of tracing."""

    shapes: ShapePolicy
    untraced: Sequence[str] = ()


class UntracedModuleError(ValueError):
    """A module that is to be left out of tracing and that the model does not have.

    Attributes:
        module: its path as the spec gives it.
    """

    def __init__(self, module: str, known: Sequence[str]) -> None:
        listed = ", ".join(known[:30]) or "none"
        super().__init__(f"compilation.untraced_modules: the model has no module {module!r}; it has {listed}")
        self.module = module


class CompiledForward:
    """Stands in for a module's `forward`: compiled for training, eager where a graph would not pay or not fit.

    Eager are evaluation (another graph for a few batches) and batches below 2 rows (sizes 0 and 1 always specialize).
    Dimension 0 of every tensor argument is the batch.
    """

    def __init__(self, name: str, module: nn.Module, *, shapes: ShapePolicy) -> None:
        self.name = name
        self._eager: Callable[..., Any] = module.forward
        self._compiled: Callable[..., Any] = torch.compile(module.forward)
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._shapes = shapes
        self._output: Any = None
        self._keeps_output = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        rows = min((tensor.shape[0] for tensor in tensors if tensor.dim()), default=0)
        if rows < 2 or not torch.is_grad_enabled():
            return self._eager(*args, **kwargs)
        if self._shapes is ShapePolicy.MARKED:
            for tensor in tensors:
                if tensor.dim():
                    torch._dynamo.mark_dynamic(tensor, 0)
        output = self._compiled(*args, **kwargs)
        if self._keeps_output:
            self._output = output
        return output

    def compile_on(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Compile forward and backward for arguments like these. No gradient is kept."""
        with torch.enable_grad():
            self._backward(self(*arguments, **keywords))

    def compile_backward(self) -> None:
        """Compile the backward of the output that was kept since `keep_output`."""
        self._backward(self._output)
        self._output, self._keeps_output = None, False

    def keep_output(self) -> None:
        """Keep the next output, for `compile_backward`."""
        self._keeps_output = True

    def _backward(self, output: Any) -> None:
        summed = [
            leaf.float().sum() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        if summed and self._parameters:
            torch.autograd.grad(torch.stack(summed).sum(), self._parameters, allow_unused=True)


def compiled_parts(model: nn.Module) -> dict[str, nn.Module]:
    """Every child that has parameters and no embedding tables, by name.

    The parts that take ids stay eager: traced with them, a model gives more graphs and breaks constraints on sizes.
    """
    return {
        name: child
        for name, child in model.named_children()
        if not _has_tables(child) and any(True for _ in child.parameters())
    }


def install(model: nn.Module, choice: Choice) -> list[CompiledForward]:
    """Replace the forward of `compiled_parts`; names and state stay as they are.

    Raises:
        UntracedModuleError: a module to be left out that the model does not have.
    """
    leave_out(model, choice.untraced)
    installed = []
    for name, part in compiled_parts(model).items():
        if name not in choice.untraced:
            part.forward = CompiledForward(name, part, shapes=choice.shapes)
            installed.append(part.forward)
    return installed


def leave_out(model: nn.Module, names: Sequence[str]) -> None:
    """Have the modules of these names run eagerly, between graphs, instead of being traced (paper section IV-B)."""
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise UntracedModuleError(name, [known for known in modules if known])
        modules[name].forward = torch.compiler.disable(modules[name].forward)


def compile_now(model: nn.Module, forwards: Sequence[CompiledForward], dense: torch.Tensor, sparse: Any) -> None:
    """Compile forward and backward of `forwards` by one pass of `model` over a batch. Collective.

    Nothing learns from it: gradients are taken of the compiled parts' parameters only and thrown away, so neither the
    optimizers nor the update fused into the tables' backward run. `model` is the one inside DDP, whose bookkeeping must
    not see a forward without its backward.
    """
    for forward in forwards:
        forward.keep_output()
    with torch.enable_grad():
        model(dense, sparse)
        for forward in reversed(forwards):
            forward.compile_backward()


def one_graph_inside_ddp() -> None:
    """On this thread: splitting at DDP's buckets would compile several graphs, to overlap a gradient exchange that is
    small here."""
    torch._dynamo.config.optimize_ddp = False


def _has_tables(module: nn.Module) -> bool:
    kinds = (EmbeddingBagCollectionInterface, EmbeddingCollectionInterface, ShardedModule)
    return any(isinstance(part, kinds) for part in module.modules())
