"""How Inductor builds kernels here: by which processes, under which names, choosing between which implementations."""

from __future__ import annotations

import json
import platform
import sys
import sysconfig
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._inductor import codecache
from torch._inductor import config as inductor

CHOICES_PATH = Path(__file__).with_name("gemm_choices.json")
CHOICES_FORMAT = 1
SEARCHED_BACKENDS = "ATEN,TRITON,CPP"
"""Torch's own default for `max_autotune_gemm_backends`."""


class AutotunePolicy(StrEnum):
    """What is done for a matrix product."""

    NONE = "none"  # torch's default: ATen, and nothing is timed
    PRUNED = "pruned"  # only implementations that have won on this class of host are tried (`gemm_choices.json`)
    SEARCHED = "searched"  # every implementation that Inductor has is built and timed


class GemmChoicesError(ValueError):
    """`gemm_choices.json` cannot be used; says what is wrong and how to write it anew."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; write it anew with: python -m trainer.compile.profile_gemms --write")
        self.path = path


def compile_in_process(device: str) -> None:
    """On CPU build kernels in this process: with one graph, a pool's processes take longer to import than they save."""
    if device == "cpu":
        inductor.compile_threads = 1


def forget_profiles() -> None:
    """Compile what the code says, not what earlier runs have seen.

    Torch keeps a profile of sizes where a job has an id (`TORCH_COMPILE_JOB_ID`). With one, the second attempt compiles
    another graph than the first, under another key, and misses all that the first has left (public report K15).
    """
    torch._dynamo.config.automatic_dynamic_local_pgo = False
    torch._dynamo.config.automatic_dynamic_remote_pgo = False
    # Without an id torch writes no profile either: one in a Mega-Cache cannot be loaded where profiles are off.
    torch.compiler.config.job_id = None


@cache
def name_kernels_alike_everywhere() -> None:
    """Name a kernel by its source and by its compiler's options, but not by where Python and torch are installed.

    Torch hashes the whole command line: where the same release is installed in another folder, every graph is found in
    the cache and every kernel is built again all the same.
    """
    original: Callable[..., Any] = codecache.write

    def write(content: str | bytes, extension: str, extra: str = "", *args: Any, **kwargs: Any) -> tuple[str, str]:
        found: tuple[str, str] = original(content, extension, without_places(extra), *args, **kwargs)
        return found

    codecache.write = write


@cache
def precompile_headers_for_new_kernels_only() -> None:
    """Run no compiler for a kernel that is there.

    Torch keeps precompiled headers in a folder of the host's own, outside of any cache, and makes or checks them before
    it looks whether there is anything to build: on another host that is most of a warm start.
    """
    write, precompile = codecache.write, codecache._precompile_header
    newest = threading.local()

    def noted_write(*args: Any, **kwargs: Any) -> tuple[str, str]:
        found: tuple[str, str] = write(*args, **kwargs)
        source = Path(found[1])
        if source.name.endswith(".main.cpp"):  # the kernel is named after it, not after the part that is optimized
            newest.built = source.with_suffix(".so").exists()
        return found

    def precompiled(header: str, *args: Any, **kwargs: Any) -> str:
        # The plain header's name is as good, should the kernel have to be built after all.
        return header if getattr(newest, "built", False) else str(precompile(header, *args, **kwargs))

    codecache.write = noted_write
    codecache._precompile_header = precompiled  # type: ignore[assignment]  # torch's own is behind a cache


def without_places(command: str) -> str:
    """A compiler's command line with names for the folders of torch and of Python."""
    for name, folder in _places():
        command = command.replace(folder, name)
    return command


@cache
def _places() -> list[tuple[str, str]]:
    """Folders and their names; the longest first, since one may be in another."""
    found = {
        str(Path(torch.__file__).parent): "<torch>",
        sysconfig.get_path("include"): "<python-include>",
        str(sysconfig.get_config_var("LIBDIR")): "<python-lib>",
        sys.prefix: "<environment>",
        sys.base_prefix: "<python>",
    }
    ordered = sorted(found.items(), key=lambda item: -len(item[0]))
    return [(name, folder) for folder, name in ordered if len(folder) > len("/usr")]


def autotune(policy: AutotunePolicy, device: str) -> None:
    """Have Inductor choose matrix products by `policy`.

    Raises:
        GemmChoicesError: the committed choices cannot be read.
    """
    inductor.max_autotune_gemm = policy is not AutotunePolicy.NONE
    if policy is AutotunePolicy.PRUNED:
        inductor.max_autotune_gemm_backends = committed_backends(host_class(device))
    elif policy is AutotunePolicy.SEARCHED:
        inductor.max_autotune_gemm_backends = SEARCHED_BACKENDS
        if device == "cpu":
            # Code that was tuned for sizes which vary fails at the next size: one graph for every size instead.
            torch._dynamo.config.automatic_dynamic_shapes = False


def host_class(device: str) -> str:
    """The class of host that the committed choices are written for."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def committed_backends(host: str, path: Path = CHOICES_PATH) -> str:
    """Which implementations are tried on a class of host, as Inductor writes them; the file's default for others.

    Raises:
        GemmChoicesError: no such file, or it is not of this format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != CHOICES_FORMAT:
            raise GemmChoicesError(path, f"it is of format {document['format']}; this release knows {CHOICES_FORMAT}")
        backends = document["hosts"].get(host, {}).get("backends", document["default"])
    except OSError as error:
        raise GemmChoicesError(path, f"it cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, GemmChoicesError):
            raise
        raise GemmChoicesError(path, f"it is not what the tool writes ({error!r})") from error
    known = set(SEARCHED_BACKENDS.split(","))
    if not isinstance(backends, list) or not backends or not known.issuperset(backends):
        raise GemmChoicesError(path, f"backends {backends!r} of {host!r} are not some of {SEARCHED_BACKENDS}")
    return ",".join(backends)
