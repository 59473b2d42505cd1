"""PyTorch's Mega-Cache: graphs, source, autotuning results and profiles of this process as one value."""

from __future__ import annotations

import torch


class MegaCacheError(Exception):
    """Bytes that torch does not take for a Mega-Cache."""


def saved() -> bytes | None:
    """All that this process compiled or took from a cache so far; None if nothing.

    On CPU the built kernels are not in it, only their source.
    """
    found = torch.compiler.save_cache_artifacts()
    return found[0] if found else None


def load(artifacts: bytes) -> int:
    """Write artifacts into this process's cache folder. Returns how many there were.

    They hold pickles, which are code: load only what is proved (`trainer.compile.trust`).

    Raises:
        MegaCacheError: torch cannot read them.
        OSError: the folder cannot be written.
    """
    try:
        info = torch.compiler.load_cache_artifacts(artifacts)
    except OSError:
        raise
    except Exception as error:  # torch asserts what it expects of artifacts and of its own settings
        raise MegaCacheError(f"torch cannot use the Mega-Cache in it ({type(error).__name__}: {error})") from error
    if info is None:
        raise MegaCacheError("torch cannot read the Mega-Cache in it")
    return sum(len(keys) for keys in info.artifacts.values())
