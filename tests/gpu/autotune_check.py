"""Autotuning of the interaction with the whole search space and with the committed configuration, each in a process
that has compiled nothing yet.

    python -m tests.gpu.autotune_check searched|committed   (one side; prints JSON)
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator

import torch

from tests.gpu.bench import Bench
from tests.gpu.findings import Finding, Verdict
from trainer.kernels import ConfigSource, use_configs

CHECK = "autotuning"
BATCH, FEATURES, WIDTH = 8192, 26, 64


def findings(bench: Bench) -> Iterator[Finding]:
    if not bench.on_gpu or importlib.util.find_spec("triton") is None:
        yield Finding.skipped(CHECK, "timing kernels needs a GPU and Triton")
        return
    bench.require_seconds(120)
    sides = {
        source: bench.child("tests.gpu.autotune_check", source.value, **bench.fresh(f"autotune-{source}"))
        for source in ConfigSource
    }
    for source, figures in sides.items():
        yield Finding(
            check=CHECK,
            subject=f"{source} configurations, B={BATCH} F={FEATURES} E={WIDTH} float32",
            verdict=Verdict.MEASURED,
            figures=figures,
            note="first_step_s builds and, if searched, times the kernels",
        )


def one_side(source: ConfigSource) -> dict[str, float]:
    """Seconds of the first forward and backward in this process, and microseconds of later ones."""
    from triton.testing import do_bench

    from trainer.kernels.interaction import fused_interaction

    use_configs(source)
    dense = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
    embedded = torch.randn(BATCH, FEATURES, WIDTH, device="cuda", requires_grad=True)

    def step() -> None:
        torch.autograd.grad(fused_interaction(dense, embedded).sum(), [dense, embedded])

    torch.cuda.synchronize()
    start = time.monotonic()
    step()
    torch.cuda.synchronize()
    first = time.monotonic() - start
    forward = do_bench(lambda: fused_interaction(dense.detach(), embedded.detach()))
    return {"first_step_s": first, "forward_us": float(forward) * 1000, "step_us": float(do_bench(step)) * 1000}


if __name__ == "__main__":
    json.dump(one_side(ConfigSource(sys.argv[1])), sys.stdout)
