"""How Inductor builds kernels here: instruction set taken as reported, no pool of compiler processes for one graph."""

from __future__ import annotations

from torch._inductor import config as inductor


def skip_instruction_set_probe() -> None:
    """Take the instruction set that the processor reports: compiling test programs is half of a warm start on CPU.

    The flag is part of Inductor's cache key: set it in cold and warm starts alike.
    """
    inductor.cpp.vec_isa_ok = True


def compile_in_process(device: str) -> None:
    """On CPU build kernels in this process: with one graph, a pool's processes take longer to import than they save."""
    if device == "cpu":
        inductor.compile_threads = 1
