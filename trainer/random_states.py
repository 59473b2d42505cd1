"""Random generators of a rank: seeded before its first step, or put back to where a checkpoint found them."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainer.attempt import Rank


@dataclass(frozen=True, kw_only=True)
class GeneratorStart:
    """How the generators stand at the first step: as `saved` by this very rank, or seeded where nothing was saved.

    Set right before that step: what startup draws depends on what was found in a cache.
    """

    seed: int
    place: Rank
    device: torch.device
    step: int
    saved: Mapping[str, Any] = field(default_factory=dict)

    def apply(self) -> None:
        """Set all generators of this process."""
        if self.saved:
            restore_generators(self.saved, self.device)
        else:
            seed_generators(self.seed, self.place, step=self.step)


def seed_generators(seed: int, place: Rank, *, step: int) -> None:
    """Seed torch (CPU and CUDA), numpy and python for the steps from `step` on; every rank differently.

    A resume on another number of ranks has no states to go on with. Its seed depends on the step, so that the stream
    does not repeat the numbers of its first rows.
    """
    text = f"{seed}/{place.rank}/{place.world_size}/{step}".encode()
    value = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1  # torch takes 63 bits
    torch.manual_seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def capture_generators(device: torch.device) -> dict[str, Any]:
    """The states of this process's generators, JSON-able; of CUDA's that of `device`."""
    version, words, gauss = random.getstate()
    numbers: Any = np.random.get_state(legacy=False)
    states = {
        "python": {"version": version, "words": _packed(np.array(words, dtype=np.uint32)), "gauss": gauss},
        "numpy": {
            "key": _packed(numbers["state"]["key"]),
            "pos": int(numbers["state"]["pos"]),
            "has_gauss": int(numbers["has_gauss"]),
            "gauss": float(numbers["gauss"]),
        },
        "torch": _packed(torch.get_rng_state().numpy()),
    }
    if device.type == "cuda":
        states["cuda"] = _packed(torch.cuda.get_rng_state(device).numpy())
    return states


def restore_generators(states: Mapping[str, Any], device: torch.device) -> None:
    """Go on from `states` of `capture_generators`. CUDA's is skipped where it was not saved, or there is no GPU now."""
    python, numbers = states["python"], states["numpy"]
    words = tuple(int(word) for word in _unpacked(python["words"], np.uint32))
    random.setstate((python["version"], words, python["gauss"]))
    inner = {"key": _unpacked(numbers["key"], np.uint32), "pos": numbers["pos"]}
    outer = {"has_gauss": numbers["has_gauss"], "gauss": numbers["gauss"]}
    np.random.set_state({"bit_generator": "MT19937", "state": inner, **outer})
    torch.set_rng_state(torch.from_numpy(_unpacked(states["torch"], np.uint8)))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(torch.from_numpy(_unpacked(states["cuda"], np.uint8)), device)


def _packed(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _unpacked(text: str, kind: Any) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype=kind).copy()
