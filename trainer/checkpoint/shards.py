"""One rank's shard file, and the report by which the rank tells rank 0 that it is on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from trainer.checkpoint.durable import FileRecord, HashedFile, sync_folder, write_atomically
from trainer.checkpoint.errors import CheckpointWriteError
from trainer.checkpoint.progress import Progress
from trainer.checkpoint.staging import StagedState
from trainer.storage import StoragePath, read, remove_file


@dataclass(frozen=True, kw_only=True)
class ShardItem:
    """Where one part lies in its file, in DCP's terms. `shape`, `offsets` and `sizes` are None for a plain value."""

    fqn: str
    offset: int
    length: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offsets: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What one rank wrote. `paths`: fully qualified name -> place in the nested state."""

    rank: int
    files: Mapping[str, FileRecord]
    shard_file: str
    items: Sequence[ShardItem]
    paths: Mapping[str, Sequence[str | int]]
    progress: Progress

    def write(self, path: StoragePath) -> None:
        document = {**asdict(self), "progress": self.progress.to_dict()}
        write_atomically(path, json.dumps(document).encode())

    @classmethod
    def read(cls, path: StoragePath) -> ShardReport | None:
        """The report at `path`; None as long as there is none.

        Raises:
            OSError: the storage cannot be reached.
        """
        try:
            document: dict[str, Any] = json.loads(read(path))
        except FileNotFoundError:
            return None
        document["files"] = {name: FileRecord(**record) for name, record in document["files"].items()}
        document["items"] = [ShardItem(**_tuples(item)) for item in document["items"]]
        document["progress"] = Progress.from_dict(document["progress"])
        return cls(**document)


def write_shards(path: StoragePath, staged: StagedState) -> tuple[FileRecord, list[ShardItem]]:
    """Write the rank's parts durably into one file, as DCP lays them out.

    Raises:
        CheckpointWriteError: names the file; nothing of it counts.
    """
    items = []
    with HashedFile(path) as stream:
        for part in staged.parts:
            start = stream.tell()
            if isinstance(part.data, bytes):
                stream.write(part.data)
            else:
                torch.save(_compact(part.data), cast(IO[bytes], stream))
            items.append(_shard_item(part.item, start, stream.tell() - start))
    sync_folder(path.parent)
    return stream.record(), items


def report_failure(path: StoragePath, message: str, *, shard: StoragePath) -> None:
    """Tell rank 0 not to wait. The rank's shard goes first: on a full disk that makes the room for saying so.

    Where another rank takes that room at once, the file stays empty: its being there takes none.
    """
    remove_file(shard)
    try:
        write_atomically(path, json.dumps({"message": message}).encode())
    except CheckpointWriteError:
        if not isinstance(path, Path):
            raise
        path.touch()


def failure_at(path: StoragePath) -> str | None:
    """What a rank reported as its failure; None if it has not."""
    try:
        told = read(path)
    except FileNotFoundError:
        return None
    return str(json.loads(told)["message"]) if told else "it had no room to say why; is the storage full?"


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """torch.save writes all of a tensor's storage, and a table is often a view into one storage for many."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _shard_item(item: WriteItem, offset: int, length: int) -> ShardItem:
    if item.type is WriteItemType.BYTE_IO or item.tensor_data is None:
        return ShardItem(fqn=item.index.fqn, offset=offset, length=length)
    data = item.tensor_data
    return ShardItem(
        fqn=item.index.fqn,
        offset=offset,
        length=length,
        dtype=str(data.properties.dtype).removeprefix("torch."),
        shape=tuple(data.size),
        offsets=tuple(data.chunk.offsets),
        sizes=tuple(data.chunk.sizes),
    )


def _tuples(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in item.items()}
