"""Staging: this rank's part of the state, copied in one pass into buffers that live as long as the run (paper IV-C b).

DCP's own stagers either refuse ShardedTensor or copy it with all of its storage, which blocks the loop longer than a
synchronous save does. Here the rank plans what it will write, and copies exactly that.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Replicate

from trainer.checkpoint.errors import PoisonedStateError
from trainer.storage import StoragePath

State = Mapping[str, Any]
"""Name -> an object with `state_dict`, or nested dicts of tensors (plain, ShardedTensor, DTensor) and plain values."""


class Staging(Enum):
    """Whether the parts are copied (the loop may go on) or handed out as they are (it must not)."""

    COPY = "copy"
    IN_PLACE = "in_place"


@dataclass(frozen=True)
class StagedPart:
    """One thing to write: a tensor on the CPU, or a value already serialized."""

    item: WriteItem
    data: torch.Tensor | bytes


@dataclass(frozen=True)
class StagedState:
    """All that this rank writes, and where each name belongs in the nested state."""

    parts: Sequence[StagedPart]
    paths: Mapping[str, tuple[str | int, ...]]

    def refuse_nan(self, path: StoragePath) -> None:
        """See to it that no NaN gets into a checkpoint; reads every value once, so it belongs to the background.

        Infinities pass: a model may hold them, in a mask.

        Raises:
            PoisonedStateError: names the tensor.
        """
        for part in self.parts:
            if isinstance(part.data, torch.Tensor) and part.data.is_floating_point() and _has_nan(part.data):
                raise PoisonedStateError(path, part.item.index.fqn)


class Stager:
    """Owns the buffers. They are allocated by the first `stage` and used again by every later one.

    On CUDA the buffers are pinned and the copies do not block each other; `stage` returns once all have arrived, so
    that the values are those of the saved step whatever the loop does next (case C5). The CUDA path has not run on a
    GPU yet.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._buffers: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def stage(self, state: State, staging: Staging) -> StagedState:
        """Plan and collect this rank's part of `state`."""
        planner = DefaultSavePlanner()
        planner.set_up_planner(
            {
                name: element.state_dict() if hasattr(element, "state_dict") else element
                for name, element in state.items()
            },
            is_coordinator=self._rank == 0,
        )
        items = [item for item in planner.create_local_plan().items if self._writes(item, planner)]
        values = [item for item in items if item.type is WriteItemType.BYTE_IO]
        tensors = [item for item in items if item.type is not WriteItemType.BYTE_IO]
        sources = [_local(planner.lookup_object(item.index)) for item in tensors]
        staged = self._copied(tensors, sources) if staging is Staging.COPY else [source.cpu() for source in sources]
        parts = [StagedPart(item, _serialized(planner.lookup_object(item.index))) for item in values]
        parts += [StagedPart(item, tensor) for item, tensor in zip(tensors, staged, strict=True)]
        return StagedState(parts, planner.mappings)

    def _writes(self, item: WriteItem, planner: DefaultSavePlanner) -> bool:
        """Shards belong to who holds them, what all ranks hold alike to rank 0: no rank needs to ask another."""
        if item.type is not WriteItemType.SHARD:
            return self._rank == 0
        if item.tensor_data is None or math.prod(item.tensor_data.chunk.sizes) == 0:
            return False
        tensor = planner.state_dict[item.index.fqn]
        return not isinstance(tensor, DTensor) or _first_replica(tensor)

    def _copied(self, items: Sequence[WriteItem], sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        buffers = [self._buffer(item, source) for item, source in zip(items, sources, strict=True)]
        devices = {source.device for source in sources}
        for device in devices:
            pairs = [(into, of) for into, of in zip(buffers, sources, strict=True) if of.device == device]
            into, of = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            with torch.no_grad():
                torch._foreach_copy_(into, of, non_blocking=device.type == "cuda")
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return buffers

    def _buffer(self, item: WriteItem, source: torch.Tensor) -> torch.Tensor:
        key = (item.index.fqn, tuple(item.index.offset or ()))
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
            pinned = source.device.type == "cuda"
            buffer = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=pinned)
            self._buffers[key] = buffer
        return buffer


def _has_nan(tensor: torch.Tensor) -> bool:
    """A sum takes a sixth of the time, and is NaN where a value is; it is too where infinities cancel out."""
    return bool(tensor.sum().isnan()) and bool(tensor.isnan().any())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return held.detach()


def _first_replica(tensor: DTensor) -> bool:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    return all(
        position == 0
        for position, placement in zip(coordinate, tensor.placements, strict=True)
        if isinstance(placement, Replicate)
    )


def _serialized(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
