"""What the standby imports ahead for each kind of job, and the proof that it may still be forked."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
import time
from types import ModuleType

import psutil

log = logging.getLogger(__name__)

_TRAINER = (
    *("trainer.attempt", "trainer.finish", "trainer.hurried_exit", "trainer.loop", "trainer.model.dlrm"),
    *("trainer.oversight", "trainer.preemption", "trainer.spec", "trainer.stages", "trainer.standing"),
    *("trainer.startup", "pyarrow.dataset", "torch._dynamo", "torch._inductor.compile_fx"),
)
# What torch imports only once it compiles. These are its private names: one that a release lacks is left out.
_COMPILER = (
    *("torch._dynamo.backends.inductor", "torch._dynamo.repro.after_dynamo", "torch._functorch._aot_autograd"),
    *("torch.export._trace", "torch.utils.cpp_extension", "torch.utils.serialization", "torch._subclasses"),
    *(
        f"torch._inductor.{name}"
        for name in ("bounds", "choices", "hooks", "kernel_template_choice", "runtime.caching")
    ),
    *(f"torch._inductor.codegen.{name}" for name in ("cpp", "cpp_wrapper_gpu", "cuda_combined_scheduling", "halide")),
    *(f"torch._inductor.codegen.{name}" for name in ("memory_planning", "mps", "pallas", "segmented_tree")),
    *(f"torch._inductor.codegen.{name}" for name in ("wrapper_fxir", "xpu.xpu_combined_scheduling")),
    *(f"torch._inductor.fx_passes.{name}" for name in ("freezing_patterns", "fuse_attention", "mkldnn_fusion")),
    *(f"torch._inductor.fx_passes.{name}" for name in ("pad_mm", "quantization", "efficient_conv_bn_eval")),
    *("sympy.physics.units", "sympy.tensor.tensor"),
)
_WITH_ALL_INSIDE = ("torch._inductor.fx_passes.serialized_patterns",)

QUIET = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""For the standby alone: numpy's OpenBLAS and Arrow's jemalloc would else start threads when they are loaded."""


class UnsafeForkError(Exception):
    """A forked process would not be sound; says why."""


def modules_for(command: str) -> tuple[str, ...]:
    """What a rank that runs `python -m command` imports in any case."""
    return _TRAINER if command == "trainer" else ()


def preload(modules: tuple[str, ...]) -> float:
    """Import them; returns the seconds it took. The user's own modules are left to the ranks: they may change."""
    began = time.monotonic()
    for name in modules:
        importlib.import_module(name)
    if "torch._inductor" in sys.modules:
        for name in _COMPILER:
            _import_if_there(name)
        for package in _WITH_ALL_INSIDE:
            found = _import_if_there(package)
            for inside in pkgutil.iter_modules(found.__path__) if found is not None else ():
                _import_if_there(f"{package}.{inside.name}")
    return time.monotonic() - began


def _import_if_there(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        log.info("not imported ahead: %s", error)
        return None


def check_forkable() -> None:
    """Raises UnsafeForkError if this process has threads, a process group, or a device."""
    threads = {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208 - a Path for each is not needed
    if len(threads) > 1:
        names = ", ".join(sorted(_name(thread) for thread in threads - {os.getpid()}))
        raise UnsafeForkError(f"it has threads besides its main one: {names}")
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        raise UnsafeForkError("it has initialized CUDA")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UnsafeForkError("it is in a process group")


def _name(thread: int) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return str(thread)


def resident_mb() -> int:
    """This process's memory."""
    rss: int = psutil.Process().memory_info().rss
    return rss >> 20
