"""What compiled code depends on: the key of an archive, as named parts, and the type of host it runs on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.spec import RefreshSpec, Technique

ARCHIVE_FORMAT = 2

_INSTRUCTIONS = (
    *("avx", "sse", "ssse", "pni", "amx", "fma", "f16c", "bmi", "abm", "popcnt", "aes", "vaes", "pclmul", "vpclmul"),
    *("sha_ni", "gfni", "adx", "movbe", "movdir", "clwb", "clflushopt", "serialize", "rtm"),
)
"""Beginnings of the x86 flags that name instructions; the rest (mitigations, virtualization) varies with the kernel."""


@dataclass(frozen=True)
class CompileKey:
    """What compiled code depends on, as named parts, so that a miss can say which of them changed.

    It chooses an archive, no more: Inductor checks every graph against its own key, so code that changed behind an
    unchanged spec (a user's factory) is compiled anew.
    """

    parts: dict[str, str]

    @classmethod
    def of(cls, spec: RefreshSpec, *, device: str, threads: int | None = None) -> CompileKey:
        """The key of a spec on this host; `threads` of a rank, by default those that torch has now."""
        on = spec.optimizations.enabled
        asked = spec.compilation
        inputs = {"dense": len(spec.contract.dense), "sparse": len(spec.contract.sparse)}
        return cls(
            {
                "format": str(ARCHIVE_FORMAT),
                "model": json.dumps(spec.model.model_dump(mode="json"), sort_keys=True),
                "inputs": json.dumps(inputs, sort_keys=True),
                "batch_size": str(spec.training.batch_size),
                "deterministic": str(spec.training.deterministic),
                "dynamic_shapes": str(on(Technique.DYNAMIC_SHAPES)),
                "untraced_modules": json.dumps(sorted(asked.untraced_modules) if on(Technique.SKIP_MODULES) else []),
                "autotuning": str(asked.max_autotune and (1 if on(Technique.AUTOTUNE_PRUNING) else 2)),
                "stable_keys": str(on(Technique.STABLE_KEYS)),
                "device": device,
                **versions(),
                **host(device, threads=threads),
            }
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True).encode()).hexdigest()[:20]

    def changed_from(self, other: CompileKey) -> list[str]:
        """The parts that differ."""
        names = self.parts.keys() | other.parts.keys()
        return sorted(name for name in names if self.parts.get(name) != other.parts.get(name))


def versions() -> dict[str, str]:
    """Releases of what writes compiled code and of what runs it."""
    return {
        "torch": torch.__version__,
        "torchrec": _version("torchrec"),
        "triton": _version("triton"),
        "python": platform.python_version(),
    }


def host(device: str, *, threads: int | None = None) -> dict[str, str]:
    """The type of this host, and on CPU the threads of a rank: Inductor writes their number into the kernels."""
    if device == "cuda":
        return {"host_type": torch.cuda.get_device_name(), "threads": "any"}
    return {"host_type": cpu_type(), "threads": str(torch.get_num_threads() if threads is None else threads)}


def cpu_type() -> str:
    """Hosts of one type run each other's kernels, which are built for the very processor (-march=native) and libc.

    The number of cores is no part of it.
    """
    capability = os.environ.get("ATEN_CPU_CAPABILITY") or torch.backends.cpu.get_cpu_capability()
    instructions = hashlib.sha256(" ".join(_instructions()).encode()).hexdigest()[:12]
    return f"{platform.machine()} {capability} {instructions} {'-'.join(platform.libc_ver())}"


def _instructions() -> list[str]:
    """Names of the processor's instruction sets, from the kernel."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() == "Features":  # on ARM all of them name instructions
            return sorted(set(flags.split()))
        if name.strip() == "flags":
            return sorted({flag for flag in flags.split() if flag.startswith(_INSTRUCTIONS)})
    return []


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
