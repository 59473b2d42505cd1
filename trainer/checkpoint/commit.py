"""Commit, by rank 0 alone: await every rank's report, check that the parts make one state, write the manifest, rename.

Ranks meet in the file system only. A collective in a background thread would hang the survivors when a rank dies in
mid-save; here they wait for files, with a deadline, and the save that misses it never becomes selectable.
"""

from __future__ import annotations

import io
import math
import pickle
import shutil
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

from trainer.checkpoint.durable import FileRecord, publish_folder, write_durably
from trainer.checkpoint.errors import CheckpointError, IncoherentSaveError, NotDurableError
from trainer.checkpoint.manifest import METADATA_NAME, CheckpointKind, CheckpointRef, Lineage, Manifest, TensorRecord
from trainer.checkpoint.progress import merge
from trainer.checkpoint.reference import merge_references
from trainer.checkpoint.shards import ShardReport, failure_of, remove_reports

POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save on its way: written into `aside`, to appear as `target`. `save_id` tells it from every other save."""

    kind: CheckpointKind
    step: int
    target: Path
    save_id: str
    world_size: int
    lineage: Lineage

    @property
    def aside(self) -> Path:
        return self.target.with_name(f"{self.target.name}.{self.save_id}.tmp")

    @property
    def tombstone(self) -> Path:
        """A file that rank 0 leaves where it gave the save up; holds why."""
        return self.target.with_name(f"{self.target.name}.{self.save_id}.given-up.tmp")

    def committed(self) -> bool:
        """Whether this very save (not an earlier one of the same step) is in place."""
        try:
            return Manifest.read(self.target).save_id == self.save_id
        except (CheckpointError, OSError):
            return False


def commit(save: Save, *, timeout_s: float) -> CheckpointRef:
    """Make the save a checkpoint, once every rank's part is on the disk.

    Raises:
        CheckpointError: a rank failed or stayed silent, or the parts do not make one state. The save is then gone.
    """
    reports = _gather(save, time.monotonic() + timeout_s)
    progress = merge([report.progress for report in reports], save.aside)
    metadata = _metadata(reports, save.aside)
    files = {name: record for report in reports for name, record in report.files.items()}
    stream = io.BytesIO()
    pickle.dump(metadata, stream)
    files[METADATA_NAME] = write_durably(save.aside / METADATA_NAME, stream.getvalue())
    if save.kind is CheckpointKind.ANCHOR:
        files = _with_reference(save, files)
    manifest = Manifest(
        kind=save.kind,
        save_id=save.save_id,
        lineage=save.lineage,
        progress=progress,
        files=files,
        tensors=_tensor_records(metadata),
        values=_value_names(metadata),
        versions={"torch": torch.__version__},
    )
    remove_reports(save.aside, save.world_size)
    manifest.write(save.aside)
    publish_folder(save.aside, save.target)
    return CheckpointRef(save.target, progress.step, progress.cursor)


def give_up(save: Save, reason: str) -> None:
    """On rank 0: end the save for good. Its folder goes first: on a full disk that makes the room for saying so."""
    shutil.rmtree(save.aside, ignore_errors=True)
    save.tombstone.write_text(reason, encoding="utf-8")


def await_commit(save: Save, *, failure: Callable[[], Exception | None], timeout_s: float) -> CheckpointRef:
    """Wait, on any rank, until rank 0 has committed the save. `failure` is what this rank knows of its own part.

    Raises:
        NotDurableError: this rank failed, rank 0 gave the save up, or nothing happened in time.
    """
    deadline = time.monotonic() + timeout_s
    while not save.committed():
        if error := failure():
            raise NotDurableError(save.target, str(error))
        if save.tombstone.exists():
            raise NotDurableError(save.target, f"rank 0 gave the save up: {save.tombstone.read_text(encoding='utf-8')}")
        if time.monotonic() > deadline:
            raise NotDurableError(save.target, f"no commit within {timeout_s:g} s; are rank 0 and the storage alive?")
        time.sleep(POLL_S)
    return CheckpointRef.open(save.target)


def _gather(save: Save, deadline: float) -> list[ShardReport]:
    reports: dict[int, ShardReport] = {}
    while True:
        for rank in range(save.world_size):
            if rank in reports:
                continue
            if message := failure_of(save.aside, rank):
                raise NotDurableError(save.target, f"rank {rank} could not write its part: {message}")
            if report := ShardReport.read(save.aside, rank):
                reports[rank] = report
        if len(reports) == save.world_size:
            return [reports[rank] for rank in range(save.world_size)]
        if time.monotonic() > deadline:
            silent = sorted(set(range(save.world_size)) - reports.keys())
            raise NotDurableError(save.target, f"no word from ranks {silent} in time; are they alive?")
        time.sleep(POLL_S)


@dataclass
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    chunks: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)


def _metadata(reports: Sequence[ShardReport], path: Path) -> Metadata:
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


def _tensor_metadata(name: str, entry: _Entry, path: Path) -> TensorStorageMetadata:
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


def _with_reference(save: Save, files: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    parts = [name for name in files if name.endswith(".parquet")]
    name, record = merge_references(save.aside, parts)
    return {**{other: kept for other, kept in files.items() if other not in parts}, name: record}
