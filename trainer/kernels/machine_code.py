"""Builds a kernel's machine code for a GPU type that need not be there, and reads off what it needs to run."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainer.kernels.configs import Kernel, LaunchConfig, ShapeClass
from trainer.kernels.interaction import SOURCES, constants
from trainer.kernels.pairwise import Precision

POINTER_OF = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}
TENSORS = frozenset({"dense", "embedded", "crossed", "grad", "grad_dense", "grad_embedded"})
UNIT_STRIDES = ("dense_e", "embedded_e", "grad_p")
"""Strides that are 1 in contiguous tensors, to which Triton specializes."""

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class MachineCodeError(Exception):
    """A kernel could not be built for a GPU type; says which and why."""


@dataclass(frozen=True, kw_only=True)
class GpuType:
    """What a multiprocessor of one GPU generation offers."""

    capability: int
    registers: int = 65536
    shared_bytes: int
    threads: int = 2048
    programs: int = 32


A100 = GpuType(capability=80, shared_bytes=164 * 1024)
H100 = GpuType(capability=90, shared_bytes=228 * 1024)  # H200 as well


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one program of a kernel takes; `spilled_bytes` is registers' worth that went to memory, per thread."""

    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int

    def resident_programs(self, gpu: GpuType) -> int:
        """How many programs a multiprocessor holds at once.

        >>> Needs(warps=4, registers=168, spilled_bytes=0, shared_bytes=16384).resident_programs(H100)
        3
        """
        registers_per_warp = -(-self.registers * 32 // 256) * 256  # handed out 256 at a time
        by_shared = gpu.shared_bytes // (self.shared_bytes + 1024)  # the driver keeps 1 KiB a program
        by_registers = gpu.registers // (registers_per_warp * self.warps)
        return min(by_shared, by_registers, gpu.threads // (32 * self.warps), gpu.programs)


def needs_of(kernel: Kernel, shape: ShapeClass, config: LaunchConfig, gpu: GpuType) -> Needs:
    """Compile `kernel` for the largest shape of `shape`, contiguous inputs, and read the resources of its code.

    Raises:
        MachineCodeError: Triton or its assembler refused.
    """
    try:
        compiled = triton.compile(
            _source(kernel, shape, config),
            target=GPUTarget("cuda", gpu.capability, 32),
            options={"num_warps": config.warps, "num_stages": config.stages},
        )
    except Exception as error:  # Triton raises whatever a pass of its compiler raised
        raise MachineCodeError(f"{kernel} {shape} {config} for sm_{gpu.capability}: {error!r}") from error
    registers, stack = _resources(compiled.asm["cubin"])
    return Needs(
        warps=config.warps, registers=registers, spilled_bytes=stack, shared_bytes=int(compiled.metadata.shared)
    )


def _source(kernel: Kernel, shape: ShapeClass, config: LaunchConfig) -> ASTSource:
    function = SOURCES[kernel]
    values: dict[str, Any] = constants(shape, nodes=shape.nodes - 1, width=shape.width, precision=Precision.IEEE)
    values |= {"BLOCK_E": config.block_width, "ROWS": config.rows}
    values |= {name: 1 for name in UNIT_STRIDES if name in function.arg_names}
    signature = {name: _type_of(name, shape.dtype) for name in function.arg_names}
    signature |= dict.fromkeys(values, "constexpr")
    places = {name: (index,) for index, name in enumerate(function.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name in function.arg_names if name in TENSORS}
    return ASTSource(function, signature, {places[name]: value for name, value in values.items()}, aligned)


def _type_of(name: str, dtype: str) -> str:
    return POINTER_OF[dtype] if name in TENSORS else "i32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes per thread; our kernels have no arrays, so all of the stack is spilled registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True, check=False
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout)
    if not found:
        raise MachineCodeError(f"cuobjdump did not tell the resources of a kernel: {told.stdout}{told.stderr}")
    return int(found[1]), int(found[2])
