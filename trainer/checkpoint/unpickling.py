"""Reading DCP's files without running what they say: `.metadata` is a pickle, and so are plain values in the shards."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem

from trainer.checkpoint.errors import CheckpointError, PoisonedMetadataError
from trainer.checkpoint.manifest import METADATA_NAME

_ALLOWED: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        dcp.Metadata,
        dcp.MetadataIndex,
        dcp.TensorStorageMetadata,
        dcp.BytesStorageMetadata,
        dcp.ChunkStorageMetadata,
        dcp.TensorProperties,
        dcp.StorageMeta,
        dcp._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        torch.Size,
    )
}
# How torch pickles the layout of a tensor: a function that looks a name up in a fixed table.
_ALLOWED[("torch.serialization", "_get_layout")] = torch.serialization._get_layout
_ALLOWED |= {("torch", name): kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[(module, name)]
        except KeyError:
            raise PoisonedMetadataError(self._path, f"{module}.{name}") from None


class RestrictedReader(FileSystemReader):
    """DCP's reader, whose `.metadata` may name the classes of DCP's own metadata and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> dcp.Metadata:
        """Raises PoisonedMetadataError, or CheckpointError for a pickle that cannot be read at all."""
        path = self._folder / METADATA_NAME
        try:
            found = _RestrictedUnpickler(io.BytesIO(path.read_bytes()), path).load()
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise CheckpointError(path, f"is no checkpoint metadata ({error}); use another checkpoint") from None
        if not isinstance(found, dcp.Metadata):
            raise CheckpointError(
                path, f"holds a {type(found).__name__}, no checkpoint metadata; use another checkpoint"
            )
        return found


class RestrictedPlanner(DefaultLoadPlanner):
    """DCP's load planner, which reads plain values as plain values: DCP itself unpickles them unrestricted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise PoisonedMetadataError(self._folder, f"more than plain values for {name} ({error})") from None
        stream = io.BytesIO()
        torch.save(loaded, stream)
        stream.seek(0)
        super().load_bytes(read_item, stream)
