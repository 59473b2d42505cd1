"""The Triton interaction beside its reference: largest differences, microseconds beside eager and compiled torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import torch

from tests.gpu.bench import Bench
from tests.gpu.findings import Finding, Verdict
from trainer.kernels.pairwise import reference_interaction

CHECK = "interaction"
SHAPES = ((26, 64, torch.float32), (26, 128, torch.bfloat16), (50, 128, torch.float32))
BATCH = 8192
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Relative to the reference's largest value."""

Interaction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def findings(bench: Bench) -> Iterator[Finding]:
    if not bench.on_gpu or importlib.util.find_spec("triton") is None:
        yield Finding.skipped(CHECK, "the kernel needs a GPU and Triton")
        return
    for features, width, dtype in SHAPES:
        bench.require_seconds(60)
        yield _compare(features, width, dtype)
    yield _varying_batch()


def _compare(features: int, width: int, dtype: torch.dtype) -> Finding:
    from trainer.kernels.interaction import fused_interaction

    pairs = torch.triu_indices(features + 1, features + 1, offset=1, device="cuda")

    def reference(dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return reference_interaction(dense, embedded, pairs)

    dense, embedded, grad = _inputs(BATCH, features, width, dtype)
    # In float64, so that the reference's own rounding is not held against the kernel.
    exact = _step(reference, dense.detach().double(), embedded.detach().double(), grad.double())
    got = _step(fused_interaction, dense, embedded, grad)
    errors = [_relative(mine, right) for mine, right in zip(got, exact, strict=True)]
    compiled = torch.compile(reference, dynamic=False)
    figures = {"forward_error": errors[0], "backward_error": max(errors[1:])}
    for name, interact in (("fused", fused_interaction), ("eager", reference), ("compiled", compiled)):
        forward, step = _microseconds(interact, dense, embedded, grad)
        figures |= {f"{name}_forward_us": forward, f"{name}_step_us": step}
    return Finding(
        check=CHECK,
        subject=f"B={BATCH} F={features} E={width} {str(dtype).removeprefix('torch.')}",
        verdict=Verdict.PASSED if max(errors) <= TOLERANCE[dtype] else Verdict.FAILED,
        figures=figures,
    )


def _varying_batch() -> Finding:
    """Compiled with a marked batch dimension, the kernel serves other sizes without another compilation."""
    from torch._dynamo.utils import counters

    from trainer.kernels.interaction import fused_interaction

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(lambda dense, embedded: fused_interaction(dense.relu(), embedded), fullgraph=True)
    worst = 0.0
    for batch in (512, 300, 1023):
        dense, embedded, grad = _inputs(batch, 26, 64, torch.float32)
        torch._dynamo.mark_dynamic(dense, 0)
        torch._dynamo.mark_dynamic(embedded, 0)
        got = _step(compiled, dense, embedded, grad)
        right = _step(lambda d, e: fused_interaction(d.relu(), e), dense, embedded, grad)
        worst = max(worst, *(_relative(mine, other) for mine, other in zip(got, right, strict=True)))
    graphs = counters["stats"]["unique_graphs"]
    return Finding(
        check=CHECK,
        subject="compiled, three batch sizes",
        verdict=Verdict.PASSED if graphs == 1 and worst <= TOLERANCE[torch.float32] else Verdict.FAILED,
        figures={"graphs": graphs, "error": worst},
    )


def _inputs(batch: int, features: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    dense = torch.randn(batch, width, device="cuda", dtype=dtype, requires_grad=True)
    embedded = torch.randn(batch, features, width, device="cuda", dtype=dtype, requires_grad=True)
    grad = torch.randn(batch, width + features * (features + 1) // 2, device="cuda", dtype=dtype)
    return dense, embedded, grad


def _step(interact: Interaction, dense: torch.Tensor, embedded: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    dense.requires_grad_(), embedded.requires_grad_()
    output = interact(dense, embedded)
    return [output.detach(), *torch.autograd.grad(output, [dense, embedded], grad)]


def _relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.double() - right.double()).abs().max() / right.double().abs().max())


def _microseconds(
    interact: Interaction, dense: torch.Tensor, embedded: torch.Tensor, grad: torch.Tensor
) -> tuple[float, float]:
    """Of the forward without gradients, and of forward and backward together."""
    from triton.testing import do_bench

    forward = do_bench(lambda: interact(dense.detach(), embedded.detach()))
    step = do_bench(lambda: _step(interact, dense, embedded, grad))
    return float(forward) * 1000, float(step) * 1000
