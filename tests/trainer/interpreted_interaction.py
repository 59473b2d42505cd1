"""Runs the interaction kernels under Triton's interpreter against the reference; prints differences as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from trainer.kernels import ConfigSource, configs, interaction, pairwise, tune, use_configs
from trainer.kernels.configs import Kernel, LaunchConfig, ShapeClass
from trainer.kernels.pairwise import Precision, reference_interaction

Inputs = tuple[torch.Tensor, torch.Tensor]


class ClockOnCpu:
    """All that Triton's autotuner asks of a driver."""

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return self._time

    def _time(self, launch: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        timed.append(launch)
        launch()
        return [float(len(timed))] * len(quantiles)


timed: list[Callable[[], None]] = []


def teach_interpreter_bfloat16() -> None:
    """The interpreter keeps bfloat16 as bits and multiplies those as integers; give its product their values."""
    multiply = interpreter.InterpreterBuilder.create_dot

    def valued(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, valued(a), valued(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot


def inputs(batch: int, features: int, width: int, dtype: torch.dtype = torch.float32) -> Inputs:
    generator = torch.Generator().manual_seed(batch + features + width)
    dense = torch.randn(batch, width, generator=generator)
    return dense.to(dtype), torch.randn(batch, features, width, generator=generator).to(dtype)


def strided() -> Inputs:
    """Every second column, features before rows: what slices and transposes of other tensors look like."""
    dense, embedded = inputs(3, 5, 40)
    return dense[:, ::2], embedded.transpose(0, 1).contiguous().transpose(0, 1)[:, :, 1::2]


CASES: dict[str, Callable[[], Inputs]] = {
    "usual": lambda: inputs(3, 26, 64),
    "sizes that divide nothing": lambda: inputs(7, 5, 33),
    "one row": lambda: inputs(1, 3, 8),
    "no rows": lambda: inputs(0, 3, 16),
    "one feature": lambda: inputs(4, 1, 16),
    "most features": lambda: inputs(1, 64, 16),
    "widest": lambda: inputs(1, 4, 256),
    "not contiguous": strided,
    "float16": lambda: inputs(3, 7, 24, torch.float16),
    "bfloat16": lambda: inputs(3, 7, 24, torch.bfloat16),
}

WRONG: dict[str, Callable[[], Inputs]] = {
    "batches differ": lambda: (torch.zeros(3, 8), torch.zeros(4, 2, 8)),
    "widths differ": lambda: (torch.zeros(3, 8), torch.zeros(3, 2, 9)),
    "no feature dimension": lambda: (torch.zeros(3, 8), torch.zeros(3, 8)),
    "no features": lambda: (torch.zeros(3, 8), torch.zeros(3, 0, 8)),
    "too many features": lambda: (torch.zeros(3, 8), torch.zeros(3, 128, 8)),
    "dtypes differ": lambda: (torch.zeros(3, 8), torch.zeros(3, 2, 8, dtype=torch.float16)),
    "no kernel for the dtype": lambda: (torch.zeros(3, 8).double(), torch.zeros(3, 2, 8).double()),
    "devices differ": lambda: (torch.zeros(3, 8), torch.zeros(3, 2, 8, device="meta")),
}


def compare(make: Callable[[], Inputs]) -> dict[str, float]:
    """The largest difference of the output and of each gradient, in the reference's largest value."""
    dense, embedded = (tensor.detach().requires_grad_() for tensor in make())
    pairs = torch.triu_indices(embedded.shape[1] + 1, embedded.shape[1] + 1, offset=1)
    wanted = reference_interaction(dense, embedded, pairs)
    got = interaction.fused_interaction(dense, embedded)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype and got.is_contiguous()
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(wanted.dtype)
    # Gradients arrive with any strides: here with columns next to each other.
    of_got = torch.autograd.grad(got, [dense, embedded], grad.t().contiguous().t())
    of_wanted = torch.autograd.grad(wanted, [dense, embedded], grad)
    return {
        "output": difference(got, wanted),
        "grad of dense": difference(of_got[0], of_wanted[0]),
        "grad of embedded": difference(of_got[1], of_wanted[1]),
    }


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if not wanted.numel():
        return 0.0
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def summed_gradient() -> float:
    """`sum()` hands back one number expanded to the output's shape: all strides 0."""
    dense, embedded = (tensor.requires_grad_() for tensor in inputs(3, 4, 8))
    interaction.fused_interaction(dense, embedded).sum().backward()
    mine, dense.grad = dense.grad, None
    reference_interaction(dense, embedded, torch.triu_indices(5, 5, offset=1)).sum().backward()
    return difference(mine, dense.grad)


def refusal(make: Callable[[], Inputs]) -> str:
    try:
        interaction.fused_interaction(*make())
    except interaction.InteractionShapeError as error:
        return str(error)
    return "accepted"


def configurations() -> dict[str, bool]:
    """Whether each of these computes what the reference does: several rows a program, narrow and too wide blocks."""
    shape = ShapeClass(nodes=16, width=32, dtype="float32")
    tried = [
        LaunchConfig(block_width=block, rows=rows, warps=2, stages=2) for block in (16, 32, 64) for rows in (1, 2, 4)
    ]
    return {
        f"{kernel} {config}": tune.prepared(kernel, shape, config, torch.device("cpu"), rows=5) is not None
        for kernel in Kernel
        for config in tried
    }


def broken_kernel_is_noticed() -> bool:
    """Tuning must not pick a fast configuration that computes something else."""
    right = interaction.SOURCES[Kernel.INTERACTION_FORWARD]

    class Nothing:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *_, **__: None

    interaction.SOURCES[Kernel.INTERACTION_FORWARD] = Nothing()
    try:
        config = LaunchConfig(block_width=32, rows=1, warps=2, stages=1)
        shape = ShapeClass(nodes=16, width=32, dtype="float32")
        return tune.prepared(Kernel.INTERACTION_FORWARD, shape, config, torch.device("cpu"), rows=5) is None
    finally:
        interaction.SOURCES[Kernel.INTERACTION_FORWARD] = right


def searched() -> dict[str, float]:
    """With Triton's autotuner over two configurations, of each kernel, in the place of the committed one."""
    triton.runtime.driver.set_active(ClockOnCpu())
    few = [LaunchConfig(block_width=16, rows=rows, warps=1, stages=1) for rows in (1, 2)]
    interaction.search_space = lambda shape: few
    use_configs(ConfigSource.SEARCHED)
    try:
        return {**compare(lambda: inputs(3, 5, 16)), "timed": len(timed)}
    finally:
        use_configs(ConfigSource.COMMITTED)
        interaction.search_space = configs.search_space


def as_module() -> float:
    """The module takes the kernel where it has one and the tensors are a GPU's."""

    class OnGpu(torch.Tensor):
        is_cuda = True

    dense, embedded = inputs(3, 5, 16)
    module = pairwise.PairwiseInteraction(5)
    wanted = module(dense, embedded)
    taken = []

    def fused(first: torch.Tensor, second: torch.Tensor, precision: Precision) -> torch.Tensor:
        taken.append(precision)
        return interaction.fused_interaction(first.as_subclass(torch.Tensor), second, precision)

    module._fused = fused
    got = module(dense.as_subclass(OnGpu), embedded)
    assert taken == [Precision.IEEE], taken
    return difference(got, wanted)


def main() -> None:
    teach_interpreter_bfloat16()
    json.dump(
        {
            "interpreted": interaction.INTERPRETED,
            "cases": {name: compare(make) for name, make in CASES.items()},
            "summed gradient": summed_gradient(),
            "wrong": {name: refusal(make) for name, make in WRONG.items()},
            "configurations": configurations(),
            "broken kernel is noticed": broken_kernel_is_noticed(),
            "searched": searched(),
            "as module": as_module(),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
