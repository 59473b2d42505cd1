"""What must be equal for a process forked from the standby to be what a new interpreter would be."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[2]
_OURS = ("trainer", "ett_reports")
# Read by the interpreter, the C library or a library when it is loaded: too late to change in a forked process.
_READ_AT_IMPORT = (
    *("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "JE_ARROW_", "ARROW_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH", "ATEN_", "FBGEMM", "TRITON_", "CUDA_", "CUBLAS_", "NCCL_", "GLOO_", "KINETO_", "TP_"),
)
_SURROUNDINGS = ("Uid", "Gid", "Groups", "Umask", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
_NAMESPACES = ("pid", "mnt", "net", "ipc", "user")


@dataclass(frozen=True)
class Identity:
    """Digests by what they are of: `code`, `interpreter`, `limits`, `$OMP_NUM_THREADS`, ..."""

    parts: Mapping[str, str]

    @classmethod
    def of(cls, interpreter: str, environment: Mapping[str, str], preload: Iterable[str]) -> Identity:
        """Of a standby that this process starts with `interpreter` and `environment`, and has import `preload`."""
        variables = {f"${name}": _digest(value) for name, value in environment.items() if read_at_import(name)}
        return cls({**variables, **code_on_disk(interpreter), **_surroundings(), "preload": _digest(*sorted(preload))})

    @cached_property
    def digest(self) -> str:
        """All parts in one."""
        return _digest(*(f"{name}={value}" for name, value in sorted(self.parts.items())))

    def differs_in(self, other: Mapping[str, str]) -> list[str]:
        """The names of the parts that are not equal."""
        return sorted(name for name in {*self.parts, *other} if self.parts.get(name) != other.get(name))


def read_at_import(variable: str) -> bool:
    """Whether a library reads it when it is loaded.

    >>> read_at_import("OMP_NUM_THREADS"), read_at_import("RANK")
    (True, False)
    """
    return variable.startswith(_READ_AT_IMPORT)


def code_on_disk(interpreter: str) -> dict[str, str]:
    """What a new process would import now, by names, sizes and times of files; contents are not read."""
    found = Path(interpreter)
    packages = sorted(found.parent.parent.glob("lib/python*/site-packages"))
    return {
        "interpreter": _digest(interpreter, _stamp(found), _stamp(found.parent.parent / "pyvenv.cfg")),
        "packages": _digest(*(_stamp(path) for path in packages)),
        "code": _digest(*(_stamp(path) for name in _OURS for path in sorted((PACKAGES / name).rglob("*.py")))),
    }


def _surroundings() -> dict[str, str]:
    """What a process gets from its parent: user, limits, cores, niceness, container."""
    status = Path("/proc/self/status").read_text().splitlines()
    lines = [line for line in status if line.partition(":")[0] in _SURROUNDINGS]
    namespaces = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in _NAMESPACES]
    return {
        "process": _digest(*lines, str(os.getpriority(os.PRIO_PROCESS, 0))),
        "limits": _digest(Path("/proc/self/limits").read_text()),
        "container": _digest(Path("/proc/self/cgroup").read_text(), *namespaces, _boot()),
    }


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:16]
