"""Commit, by rank 0 alone: await every rank's report, check that the parts make one state, let the manifest appear.

Ranks meet in the storage only. A collective in a background thread would hang the survivors when a rank dies in
mid-save; here they wait for files, with a deadline, and the save that misses it never becomes selectable.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from trainer.checkpoint.durable import (
    FileRecord,
    check_size,
    make_folder,
    sync_folder,
    write_atomically,
    write_durably,
)
from trainer.checkpoint.errors import (
    CheckpointError,
    DamagedManifestError,
    IncoherentSaveError,
    MissingManifestError,
    NotDurableError,
    OtherVersionError,
)
from trainer.checkpoint.manifest import (
    METADATA_NAME,
    REFERENCE_NAME,
    CheckpointKind,
    CheckpointRef,
    Lineage,
    Manifest,
    SaveId,
    TensorRecord,
)
from trainer.checkpoint.progress import merge
from trainer.checkpoint.reference import merge_references
from trainer.checkpoint.shards import ShardReport, failure_at
from trainer.storage import StoragePath, names_in, read, remove_file


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save on its way into `folder`. `save_id` tells it from every other save; `started_ns` is monotonic."""

    kind: CheckpointKind
    step: int
    folder: StoragePath
    save_id: SaveId
    world_size: int
    lineage: Lineage
    started_ns: int

    def file(self, name: str) -> StoragePath:
        """A file of this save. The anchor's folder is the same for every save, so there the name tells them apart."""
        anchored = self.kind is CheckpointKind.ANCHOR
        return self.folder / (f"{self.save_id}.{name.lstrip('.')}" if anchored else name)

    def shard(self, rank: int) -> StoragePath:
        return self.file(f"__{rank}_0.distcp")

    def reference(self, rank: int) -> StoragePath:
        return self.file(f"reference-{rank}.parquet")

    def report(self, rank: int) -> StoragePath:
        """Appears when the rank's part is durable."""
        return self.file(f"rank-{rank}.durable.json")

    def failure(self, rank: int) -> StoragePath:
        """Appears when the rank cannot write its part."""
        return self.file(f"rank-{rank}.failed.json")

    @property
    def given_up(self) -> StoragePath:
        """Appears when rank 0 gave the save up; holds why."""
        return self.file("given-up.txt")

    @property
    def seconds(self) -> float:
        return (time.monotonic_ns() - self.started_ns) / 1e9

    def committed(self) -> bool:
        """Whether this very save (not an earlier one of the same folder) has its manifest."""
        try:
            return Manifest.read(self.folder).save_id == str(self.save_id)
        except (CheckpointError, OSError):
            return False

    def pause(self) -> None:
        """Wait before looking again; an object store takes money for a look."""
        time.sleep(0.02 if isinstance(self.folder, Path) else 0.25)


def commit(save: Save, *, timeout_s: float) -> tuple[CheckpointRef, int]:
    """Make the save a checkpoint, once every rank's part is durable, for which they have `timeout_s` from its start.

    Returns the checkpoint and its bytes.

    Raises:
        CheckpointError: a rank failed or stayed silent, or the parts do not make one state. The save never counts.
        OSError: the storage cannot be reached.
    """
    reports = _gather(save, save.started_ns / 1e9 + timeout_s)
    progress = merge([report.progress for report in reports], save.folder)
    metadata = _metadata(reports, save.folder)
    files = {name: record for report in reports for name, record in report.files.items()}
    stream = io.BytesIO()
    pickle.dump(metadata, stream)
    index = save.file(METADATA_NAME)
    files[index.name] = write_durably(index, stream.getvalue())
    reference = None
    if save.kind is CheckpointKind.ANCHOR:
        files, reference = _with_reference(save, files)
    for rank in range(save.world_size):
        remove_file(save.report(rank))
    for name, record in files.items():
        check_size(save.folder / name, record)  # a zombie's sweep, a folder that went away: better seen now
    sync_folder(save.folder)
    manifest = Manifest(
        kind=save.kind,
        save_id=str(save.save_id),
        lineage=save.lineage,
        progress=progress,
        save_seconds=save.seconds,
        files=files,
        metadata=index.name,
        reference=reference,
        tensors=_tensor_records(metadata),
        values=_value_names(metadata),
        versions={"torch": torch.__version__},
    )
    manifest.write(save.folder)
    return CheckpointRef(save.folder, progress.step, progress.cursor), manifest.bytes


def give_up(save: Save, reason: str) -> None:
    """On rank 0: end the save for good. Its files go first: on a full disk that makes the room for saying so.

    Raises:
        CheckpointError, OSError: the others are not told, and wait until their deadline.
    """
    if discard(save):
        make_folder(save.folder)
        write_atomically(save.given_up, reason.encode())


def discard(save: Save) -> bool:
    """Delete what a save has left so far; False if it has committed after all: the manifest may have appeared although
    the act that made it appear failed (a lost answer of the store, a flush of the folder).

    Raises:
        CheckpointError, OSError: it cannot be told whether it has, or something could not be deleted.
    """
    with contextlib.suppress(MissingManifestError, DamagedManifestError, OtherVersionError):
        if Manifest.read(save.folder).save_id == str(save.save_id):
            return False
    own = f"{save.save_id}." if save.kind is CheckpointKind.ANCHOR else ""
    for name in names_in(save.folder):
        if name.startswith(own) and name != save.given_up.name:
            remove_file(save.folder / name)
    return True


def await_commit(save: Save, *, failure: Callable[[], Exception | None], timeout_s: float) -> CheckpointRef:
    """Wait, on any rank, until rank 0 has committed the save. `failure` is what this rank knows of its own part.

    Raises:
        NotDurableError: this rank failed, rank 0 gave the save up, or nothing happened in time.
    """
    deadline = time.monotonic() + timeout_s
    while not save.committed():
        if error := failure():
            raise NotDurableError(save.folder, str(error))
        if reason := was_given_up(save):
            raise NotDurableError(save.folder, f"rank 0 gave the save up: {reason}")
        if time.monotonic() > deadline:
            raise NotDurableError(save.folder, f"no commit within {timeout_s:.3g} s; are rank 0 and the storage alive?")
        save.pause()
    return CheckpointRef.open(save.folder)


def was_given_up(save: Save) -> str | None:
    """Why rank 0 gave the save up; None if it has not, or if the storage does not say."""
    try:
        return read(save.given_up).decode()
    except OSError:
        return None


def _gather(save: Save, deadline: float) -> list[ShardReport]:
    reports: dict[int, ShardReport] = {}
    while True:
        for rank in range(save.world_size):
            if rank in reports:
                continue
            if message := failure_at(save.failure(rank)):
                raise NotDurableError(save.folder, f"rank {rank} could not write its part: {message}")
            if report := ShardReport.read(save.report(rank)):
                reports[rank] = report
        if len(reports) == save.world_size:
            return [reports[rank] for rank in range(save.world_size)]
        if time.monotonic() > deadline:
            silent = sorted(set(range(save.world_size)) - reports.keys())
            raise NotDurableError(save.folder, f"no word from ranks {silent} in time; are they alive?")
        save.pause()


@dataclass
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    chunks: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)


def _metadata(reports: Sequence[ShardReport], path: StoragePath) -> Metadata:
    entries: dict[str, _Entry] = {}
    state: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for report in reports:
        for item in report.items:
            where = _StorageInfo(report.shard_file, item.offset, item.length)
            if item.shape is None or item.offsets is None or item.sizes is None or item.dtype is None:
                state[item.fqn] = BytesStorageMetadata()
                storage[MetadataIndex(item.fqn)] = where
                continue
            entry = entries.setdefault(item.fqn, _Entry(item.dtype, item.shape))
            if (entry.dtype, entry.shape) != (item.dtype, item.shape):
                raise IncoherentSaveError(path, f"ranks disagree on the type or shape of {item.fqn}")
            if item.offsets in entry.chunks:
                raise IncoherentSaveError(path, f"two ranks wrote the shard of {item.fqn} at {list(item.offsets)}")
            entry.chunks[item.offsets] = item.sizes
            storage[MetadataIndex(item.fqn, item.offsets)] = where
    for name, entry in entries.items():
        state[name] = _tensor_metadata(name, entry, path)
    paths = {name: tuple(place) for report in reports for name, place in report.paths.items()}
    if lost := sorted(paths.keys() - state.keys()):
        raise IncoherentSaveError(
            path, f"{lost[0]} is neither sharded nor on rank 0, which writes what is not sharded; {len(lost)} such"
        )
    return Metadata(state, planner_data=paths, storage_data=storage, version=CURRENT_DCP_VERSION)


def _tensor_metadata(name: str, entry: _Entry, path: StoragePath) -> TensorStorageMetadata:
    """Refuses a tensor of which rows are missing or doubled (case C12)."""
    held, whole = sum(math.prod(sizes) for sizes in entry.chunks.values()), math.prod(entry.shape)
    if held != whole:
        raise IncoherentSaveError(path, f"the shards of {name} hold {held} of its {whole} elements")
    return TensorStorageMetadata(
        TensorProperties(dtype=getattr(torch, entry.dtype)),
        torch.Size(entry.shape),
        [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            for offsets, sizes in sorted(entry.chunks.items())
        ],
    )


def _tensor_records(metadata: Metadata) -> dict[str, TensorRecord]:
    return {
        name: TensorRecord(str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size))
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _value_names(metadata: Metadata) -> tuple[str, ...]:
    entries = metadata.state_dict_metadata.items()
    return tuple(sorted(name for name, entry in entries if isinstance(entry, BytesStorageMetadata)))


def _with_reference(save: Save, files: Mapping[str, FileRecord]) -> tuple[dict[str, FileRecord], str]:
    """The files with one reference in the place of the ranks' parts, and its name."""
    parts = [save.reference(rank) for rank in range(save.world_size)]
    merged = save.file(REFERENCE_NAME)
    record = merge_references(parts, merged)
    for part in parts:
        remove_file(part)
    names = {part.name for part in parts}
    return {**{name: kept for name, kept in files.items() if name not in names}, merged.name: record}, merged.name
