"""All that a checkpoint holds, read whole and compared bit by bit."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from trainer.checkpoint import CheckpointRef
from trainer.checkpoint.unpickling import RestrictedReader


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, unsharded, by name: weights, optimizer state, schedule."""
    manifest = CheckpointRef.open(folder).manifest()
    tensors = {
        name: torch.empty(record.shape, dtype=getattr(torch, record.dtype)) for name, record in manifest.tensors.items()
    }
    dcp.load(dict(tensors), storage_reader=RestrictedReader(folder, manifest), no_dist=True)
    return tensors


def differing(left: Path, right: Path) -> list[str]:
    """Names of the tensors that are not the same bits in two checkpoints, and of those that only one has."""
    ours, theirs = saved_tensors(left), saved_tensors(right)
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name not in ours or name not in theirs or not torch.equal(_bits(ours[name]), _bits(theirs[name]))
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
