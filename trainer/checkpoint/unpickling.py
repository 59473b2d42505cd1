"""Reading DCP's files without running what they say: `.metadata` is a pickle, and so are plain values in the shards."""

from __future__ import annotations

import io
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem

from trainer.checkpoint.errors import CheckpointError, ForeignFileError, PoisonedMetadataError
from trainer.checkpoint.manifest import Manifest
from trainer.storage import StoragePath, opened, read

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


def _member(kind: Any, name: str) -> Any:
    """What Python before 3.11.4 pickles a member of an enum as: `getattr`, granted for the one enum of the metadata."""
    if kind is not dcp._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"its pickle asks for {name!r} of {kind!r}")
    return kind[name]


_ALLOWED[("builtins", "getattr")] = _member


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, path: StoragePath) -> None:
        super().__init__(stream)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[(module, name)]
        except KeyError:
            raise PoisonedMetadataError(self._path, f"{module}.{name}") from None


class _Files(FileSystem):
    """DCP's file system, over whatever storage the checkpoint is in."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[io.IOBase, None, None]:
        with opened(path) as stream:
            yield cast(io.IOBase, stream)

    def concat_path(self, path: Any, suffix: str) -> Any:
        return path / suffix


class RestrictedReader(FileSystemReader):
    """DCP's reader. `.metadata` may name the classes of DCP's own metadata, and files that the manifest lists."""

    def __init__(self, folder: StoragePath, manifest: Manifest) -> None:
        super().__init__("")
        self.fs, self.path = _Files(), cast(Any, folder)
        self._folder, self._manifest = folder, manifest

    def read_metadata(self, *_: Any, **__: Any) -> dcp.Metadata:
        """Raises PoisonedMetadataError, ForeignFileError, or CheckpointError for what is no metadata at all."""
        path = self._folder / self._manifest.metadata
        try:
            found = _RestrictedUnpickler(io.BytesIO(read(path)), path).load()
            self._check_files(path, found)
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
            raise CheckpointError(path, f"is no checkpoint metadata ({error}); use another checkpoint") from None
        return found

    def _check_files(self, path: StoragePath, found: Any) -> None:
        if not isinstance(found, dcp.Metadata):
            raise TypeError(f"it holds a {type(found).__name__}")
        for place in found.storage_data.values():
            if place.relative_path not in self._manifest.files:
                raise ForeignFileError(path, place.relative_path)
            if place.transform_descriptors:  # we write none, and do not run what an unpacked stream asks for
                raise ValueError(f"it asks for the transforms {place.transform_descriptors}")


class RestrictedPlanner(DefaultLoadPlanner):
    """DCP's load planner, which reads plain values as plain values: DCP itself unpickles them unrestricted."""

    def __init__(self, folder: StoragePath) -> None:
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
