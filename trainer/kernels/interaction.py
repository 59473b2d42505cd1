"""The fused pairwise interaction as a torch operator with a gradient, which torch.compile sees through."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
import triton
from torch.library import triton_op, wrap_triton

from trainer.kernels import triton_source
from trainer.kernels.configs import (
    ConfigSource,
    Kernel,
    LaunchConfig,
    ShapeClass,
    committed_config,
    config_source,
    search_space,
)
from trainer.kernels.pairwise import MAX_SPARSE_FEATURES, MAX_WIDTH, Precision

SOURCES = {
    Kernel.INTERACTION_FORWARD: triton_source.interaction_forward,
    Kernel.INTERACTION_BACKWARD: triton_source.interaction_backward,
}

INTERPRETED = not isinstance(triton_source.interaction_forward, triton.runtime.JITFunction)
"""Under TRITON_INTERPRET=1 the kernels are Python and take CPU tensors, which is how they are tested without a GPU."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class InteractionShapeError(ValueError):
    """The two inputs of the interaction do not go together; says what is expected and what came."""


def fused_interaction(
    dense: torch.Tensor, embedded: torch.Tensor, precision: Precision = Precision.IEEE
) -> torch.Tensor:
    """`dense` `[B, E]`, `embedded` `[B, F, E]`, any strides, any B -> `[B, E + F * (F + 1) / 2]`, contiguous.

    Once differentiable. Equal to `reference_interaction` up to the order of summation.

    Raises:
        InteractionShapeError: dimensions, sizes, dtypes or devices that do not go together or that no kernel is for.
    """
    _check(dense, embedded)
    plan = launch_plan(embedded.shape[1], embedded.shape[2], embedded.dtype, embedded.device)
    crossed: torch.Tensor = torch.ops.ett.pairwise_interaction(dense, embedded, precision.value, plan)
    return crossed


@triton_op("ett::pairwise_interaction", mutates_args={})
def _forward(dense: torch.Tensor, embedded: torch.Tensor, precision: str, plan: str) -> torch.Tensor:
    batch, features, width = embedded.shape
    crossed = dense.new_empty((batch, width + features * (features + 1) // 2))
    if batch:
        _launch(Kernel.INTERACTION_FORWARD, forward_arguments(dense, embedded, crossed), embedded, precision, plan)
    return crossed


@triton_op("ett::pairwise_interaction_backward", mutates_args={})
def _backward(
    grad: torch.Tensor, dense: torch.Tensor, embedded: torch.Tensor, precision: str, plan: str
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = embedded.shape[0]
    grad_dense, grad_embedded = dense.new_empty(dense.shape), embedded.new_empty(embedded.shape)
    if batch:
        arguments = backward_arguments(grad, dense, embedded, grad_dense, grad_embedded)
        _launch(Kernel.INTERACTION_BACKWARD, arguments, embedded, precision, plan)
    return grad_dense, grad_embedded


def _save_inputs(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, str, str], output: torch.Tensor) -> None:
    dense, embedded, ctx.precision, ctx.plan = inputs
    ctx.save_for_backward(dense, embedded)


def _differentiate(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
    dense, embedded = ctx.saved_tensors
    backward = torch.ops.ett.pairwise_interaction_backward
    grad_dense, grad_embedded = backward(grad, dense, embedded, ctx.precision, ctx.plan)
    return grad_dense, grad_embedded, None, None


torch.library.register_autograd("ett::pairwise_interaction", _differentiate, setup_context=_save_inputs)


def forward_arguments(dense: torch.Tensor, embedded: torch.Tensor, crossed: torch.Tensor) -> list[Any]:
    """The forward kernel's arguments up to its constants; `crossed` is contiguous and takes the result."""
    return [dense, embedded, crossed, dense.shape[0], *dense.stride(), *embedded.stride()]


def backward_arguments(
    grad: torch.Tensor,
    dense: torch.Tensor,
    embedded: torch.Tensor,
    grad_dense: torch.Tensor,
    grad_embedded: torch.Tensor,
) -> list[Any]:
    """The backward kernel's arguments up to its constants; the last two are contiguous and take the result."""
    tensors = [grad, dense, embedded, grad_dense, grad_embedded]
    return [*tensors, dense.shape[0], *grad.stride(), *dense.stride(), *embedded.stride()]


@torch.compiler.assume_constant_result
def launch_plan(sparse_features: int, width: int, dtype: torch.dtype, device: torch.device) -> str:
    """How both kernels will be launched: a digest of their source, then their configurations or `searched`.

    An argument of the operator, so that it is in the keys of torch's caches: AOTAutograd's would not notice another
    backward kernel or another configuration, and hand out the graph of the old one.
    """
    shape = ShapeClass.of(sparse_features=sparse_features, width=width, dtype=str(dtype).removeprefix("torch."))
    return _planned(shape, device_type(device), config_source())


@functools.cache
def _planned(shape: ShapeClass, device: str, source: ConfigSource) -> str:
    if source is ConfigSource.SEARCHED:
        return " ".join([_digest(repr(search_space(shape))), _SEARCHED])
    configs = [committed_config(kernel, device, shape) for kernel in Kernel]
    return " ".join([_digest(), *(f"{kernel}={config.text()}" for kernel, config in zip(Kernel, configs, strict=True))])


_SEARCHED = "searched"


def planned_config(kernel: Kernel, plan: str) -> LaunchConfig | None:
    """The configuration of `kernel` in a `launch_plan`; None if it is to be searched."""
    for part in plan.split():
        if part.startswith(f"{kernel}="):
            return LaunchConfig.parse(part.removeprefix(f"{kernel}="))
    return None


def _digest(*more: str) -> str:
    return hashlib.sha256("".join([_SOURCE_TEXT, *more]).encode()).hexdigest()[:16]


_SOURCE_TEXT = Path(triton_source.__file__).read_text(encoding="utf-8")


def shape_class(embedded: torch.Tensor) -> ShapeClass:
    """The shape class of a launch on `embedded` `[B, F, E]`."""
    return ShapeClass.of(
        sparse_features=embedded.shape[1],
        width=embedded.shape[2],
        dtype=str(embedded.dtype).removeprefix("torch."),
    )


def device_type(device: torch.device) -> str:
    """The name under which the device's configurations are kept."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def meta_of(config: LaunchConfig) -> dict[str, int]:
    """`config` as the keyword arguments of a launch."""
    return {
        "BLOCK_E": config.block_width,
        "ROWS": config.rows,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }


def constants(shape: ShapeClass, *, nodes: int, width: int, precision: str) -> dict[str, int | bool]:
    """What a kernel is specialized to."""
    return {"NODES": nodes, "WIDTH": width, "BLOCK_N": shape.nodes, "TF32": precision == Precision.TF32}


def launch_with(config: LaunchConfig, kernel: Kernel, arguments: list[Any], embedded: torch.Tensor) -> None:
    """Launch `kernel` with a configuration of the caller's choice, which tuning is about; IEEE float32."""
    batch, features, width = embedded.shape
    fixed = constants(shape_class(embedded), nodes=features + 1, width=width, precision=Precision.IEEE)
    SOURCES[kernel][(triton.cdiv(batch, config.rows),)](*arguments, **fixed, **meta_of(config))


def _launch(kernel: Kernel, arguments: list[Any], embedded: torch.Tensor, precision: str, plan: str) -> None:
    batch, features, width = embedded.shape
    shape = shape_class(embedded)
    fixed = constants(shape, nodes=features + 1, width=width, precision=precision)

    def grid(meta: dict[str, Any]) -> tuple[Any]:
        return (triton.cdiv(batch, meta["ROWS"]),)

    config = planned_config(kernel, plan)
    if config is None:
        wrap_triton(_searching(kernel, shape))[grid](*arguments, **fixed)
    else:
        wrap_triton(SOURCES[kernel])[grid](*arguments, **fixed, **meta_of(config))


@functools.cache
def _searching(kernel: Kernel, shape: ShapeClass) -> Any:
    """`kernel` with Triton's own autotuner over the whole search space of `shape`."""
    configs = [
        triton.Config(
            {"BLOCK_E": config.block_width, "ROWS": config.rows}, num_warps=config.warps, num_stages=config.stages
        )
        for config in search_space(shape)
    ]
    return triton.autotune(configs=configs, key=["NODES", "WIDTH"])(SOURCES[kernel])


def _check(dense: torch.Tensor, embedded: torch.Tensor) -> None:
    problem = _layout_problem(dense, embedded) or _kind_problem(dense, embedded)
    if problem:
        raise InteractionShapeError(
            f"pairwise interaction of dense {_told(dense)} and embedded {_told(embedded)}: {problem}"
        )


def _layout_problem(dense: torch.Tensor, embedded: torch.Tensor) -> str:
    if dense.dim() != 2 or embedded.dim() != 3:
        return "expected dense [B, E] and embedded [B, F, E]"
    if dense.shape[0] != embedded.shape[0] or dense.shape[1] != embedded.shape[2]:
        return "B and E must be the same in both"
    if not 1 <= embedded.shape[1] <= MAX_SPARSE_FEATURES or not 1 <= embedded.shape[2] <= MAX_WIDTH:
        return f"the kernel takes 1 to {MAX_SPARSE_FEATURES} features of width 1 to {MAX_WIDTH}"
    return ""


def _kind_problem(dense: torch.Tensor, embedded: torch.Tensor) -> str:
    if dense.dtype != embedded.dtype or dense.dtype not in DTYPES:
        return f"both must have the same dtype, one of {', '.join(str(dtype) for dtype in DTYPES)}"
    if dense.device != embedded.device:
        return "both must be on one device"
    if not dense.is_cuda and not INTERPRETED:
        return "Triton kernels run on CUDA; use PairwiseInteraction, which takes plain torch elsewhere"
    return ""


def _told(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
