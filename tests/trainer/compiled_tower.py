"""One attempt's compilation in a process of its own: python compiled_tower.py JSON; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.small_refresh import small_spec
from trainer.compile.attempt_cache import AttemptCache, cache_attrs
from trainer.compile.cache import GraphCacheUse
from trainer.run_folder import RunFolder

BATCH = 32


class Tower(nn.Module):
    """Small, but of every kind: products, a reduction, and points that are fused into kernels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(8, width), nn.Linear(width, 1)

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.above(torch.relu(self.below(dense)) + embedded.sum(1, keepdim=True))


def build_nothing() -> None:
    """Leave the compiler out: keys are computed before, so the kernels may do nothing."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.cpu_vec_isa import VecISA

    AsyncCompile.cpp_pybinding = lambda self, types, source: lambda *values: None
    VecISA.check_build = lambda self, code: True


def kernel_name() -> str:
    """What Inductor calls a kernel, by its source and the compiler's command line."""
    from torch._inductor import codecache, cpp_builder

    options = cpp_builder.CppTorchDeviceOptions(
        vec_isa=codecache.pick_vec_isa(), device_type="cpu", extra_flags=(), use_relative_path=False
    )
    command = cpp_builder.CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()
    return codecache.write("int kernel;", "main.cpp", extra=command)[0]


def main(settings: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    sections = {"optimizations": settings.get("optimizations", {}), "compilation": settings.get("compilation", {})}
    spec = small_spec(**sections)
    run_folder = RunFolder(Path(settings["runs"]) / spec.name / "r1")
    node, number = Path(settings["node"]), settings.get("attempt", 1)
    cache = AttemptCache.of(spec, run_folder, folder=node / f"compile-a{number}", device="cpu", threads=1)
    if settings.get("build") == "nothing":
        build_nothing()
    cache.prepare()
    lookup = cache.fill()
    torch.manual_seed(0)
    tower = Tower(settings.get("width", 16))
    compiled = torch.compile(tower.forward)
    error = 0.0
    for size in settings.get("sizes", [BATCH]):
        dense, embedded = torch.randn(size, 8), torch.randn(size, 4)
        if settings.get("marked", True):
            torch._dynamo.mark_dynamic(dense, 0)
            torch._dynamo.mark_dynamic(embedded, 0)
        output = compiled(dense, embedded)
        output.sum().backward()
        error = max(error, (output - tower(dense, embedded)).abs().max().item())
    used = GraphCacheUse.so_far()
    missed = cache.missed(lookup, used)
    archived = cache.keep(used)
    return {
        "graphs": [(graph.kind, graph.key) for graph in cache.graphs.graphs],
        "kernel": kernel_name(),
        "torch": torch.__file__,
        "error": error,
        "vectors": torch._inductor.config.cpp.vec_isa_ok,
        **cache_attrs(lookup, used, archived, missed),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
