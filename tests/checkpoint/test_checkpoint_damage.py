"""Every way in which a checkpoint on the disk can be wrong is told by its own error, before anything is unpickled."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_job import Job, progress_at, same
from torch import nn

from trainer.checkpoint import CheckpointRef, load_unsharded, newest_complete, restore, restore_newest, verify
from trainer.checkpoint.durable import hash_file, seal, unseal
from trainer.checkpoint.errors import (
    ChangedFileError,
    CheckpointError,
    DamagedManifestError,
    ForeignFileError,
    MissingFileError,
    MissingManifestError,
    OtherVersionError,
    PoisonedMetadataError,
    StateMismatchError,
    TornFileError,
)
from trainer.checkpoint.manifest import FORMAT_VERSION

SHARD = "__0_0.distcp"


class Poison:
    """Unpickled without care, this makes a file."""

    def __init__(self, touches: Path) -> None:
        self.touches = touches

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.touches,)


def tear(folder: Path) -> None:
    with (folder / SHARD).open("r+b") as stream:
        stream.truncate(100)


def change_a_byte(folder: Path) -> None:
    with (folder / SHARD).open("r+b") as stream:
        stream.seek(700)
        byte = stream.read(1)
        stream.seek(700)
        stream.write(bytes([byte[0] ^ 1]))


def lose_a_file(folder: Path) -> None:
    (folder / SHARD).unlink()


def change_the_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"cursor": 20', '"cursor": 10'))


def empty_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


DAMAGE = [
    (tear, TornFileError, SHARD),
    (change_a_byte, ChangedFileError, SHARD),
    (lose_a_file, MissingFileError, SHARD),
    (change_the_manifest, DamagedManifestError, "its digest is not that of its content"),
    (empty_the_manifest, DamagedManifestError, "manifest.json"),
]


@pytest.mark.parametrize(("damage", "error", "names"), DAMAGE, ids=[damage.__name__ for damage, _, _ in DAMAGE])
def test_damage_is_told_and_the_checkpoint_before_is_taken(
    job: Job, damage: Callable[[Path], None], error: type[CheckpointError], names: str
) -> None:
    job.saved(1)
    at_one = job.values()
    job.saved(2)
    newest = job.folder_of(2)
    ref = CheckpointRef.open(newest)
    damage(newest)

    with pytest.raises(error, match=names):
        verify(ref)
    with pytest.raises(error):
        restore(ref, job.state)
    restored = restore_newest(job.place, job.state, recorder=job.recorder)
    assert restored is not None
    assert restored.ref.step == restored.progress.step == 1
    assert same(job.values(), at_one)
    [rejected] = job.points("checkpoint_rejected")
    assert rejected["checkpoint"] == newest.name
    assert [point["step"] for point in job.points("restored")] == [1]


def test_a_folder_without_a_manifest_never_committed_and_is_no_candidate(job: Job) -> None:
    job.saved(1, 2)
    newest = job.folder_of(2)
    (newest / "manifest.json").unlink()
    with pytest.raises(MissingManifestError, match="never committed"):
        CheckpointRef.open(newest)
    restored = restore_newest(job.place, job.state, recorder=job.recorder)
    assert restored is not None and restored.ref.step == 1
    assert restored.rejected == ()


def test_another_format_version_is_told_and_nothing_older_is_taken_silently(job: Job) -> None:
    job.saved(1, 2)
    path = job.folder_of(2) / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    path.write_bytes(seal(document, version=FORMAT_VERSION + 1))
    for attempt in (
        lambda: CheckpointRef.open(path.parent),
        lambda: restore_newest(job.place, job.state, recorder=job.recorder),
        lambda: newest_complete(job.place.checkpoints),
    ):
        with pytest.raises(
            OtherVersionError,
            match=f"format version {FORMAT_VERSION + 1}, and this release reads version {FORMAT_VERSION}",
        ):
            attempt()


def test_a_poisoned_metadata_pickle_is_named_and_not_run(job: Job, tmp_path: Path) -> None:
    """Whoever can write the folder can write the manifest too, so the hashes are made to fit."""
    job.saved(1)
    folder = job.folder_of(1)
    touched = tmp_path / "ran"
    _replace(folder, ".metadata", pickle.dumps(Poison(touched)))
    with pytest.raises(PoisonedMetadataError, match=r"pathlib\.Path\.touch|builtins\.getattr|pathlib"):
        restore(CheckpointRef.open(folder), job.state)
    assert not touched.exists()


def test_a_poisoned_value_in_a_shard_is_not_run_either(job: Job, tmp_path: Path) -> None:
    touched = tmp_path / "ran"
    checkpointer = job.checkpointer()
    checkpointer.save(1, {"model": job.module, "extra": {"poison": Poison(touched)}}, progress_at(1))
    checkpointer.close()
    state = {"model": job.module, "extra": {"poison": None}}
    with pytest.raises(CheckpointError, match=r"more than plain values for extra\.poison"):
        restore(CheckpointRef.open(job.folder_of(1)), state)
    assert not touched.exists()


@pytest.mark.parametrize("name", ["../step-0/__0_0.distcp", "/etc/hostname", "sub/file", "..", "", "manifest.json"])
def test_a_manifest_that_lists_a_file_outside_its_folder_is_refused(job: Job, name: str) -> None:
    job.saved(1)
    path = job.folder_of(1) / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    document["files"][name] = document["files"][SHARD]
    path.write_bytes(seal(document, version=FORMAT_VERSION))
    with pytest.raises(ForeignFileError, match="Treat the folder as hostile"):
        verify(CheckpointRef(path.parent, 1, 10))
    assert restore_newest(job.place, job.state, recorder=job.recorder) is None


@pytest.mark.parametrize("name", [SHARD, ".metadata", "manifest.json"])
def test_a_symbolic_link_is_no_file_of_a_checkpoint(job: Job, tmp_path: Path, name: str) -> None:
    """Even one that leads to the very same bytes: tomorrow it may lead elsewhere."""
    job.saved(1)
    path = job.folder_of(1) / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MissingManifestError if name == "manifest.json" else MissingFileError):
        verify(CheckpointRef(path.parent, 1, 10))
    assert restore_newest(job.place, job.state, recorder=job.recorder) is None


def test_metadata_that_speaks_of_files_outside_the_folder_is_refused(job: Job, tmp_path: Path) -> None:
    job.saved(1)
    folder = job.folder_of(1)
    shutil.copy(folder / SHARD, tmp_path / "elsewhere")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    index, place = next(iter(metadata.storage_data.items()))
    for name in (str(tmp_path / "elsewhere"), "../elsewhere"):
        metadata.storage_data[index] = replace(place, relative_path=name)
        _replace(folder, ".metadata", pickle.dumps(metadata))
        with pytest.raises(ForeignFileError, match="elsewhere"):
            restore(CheckpointRef.open(folder), job.state)
    metadata.storage_data[index] = replace(place, transform_descriptors=["zstd"])
    _replace(folder, ".metadata", pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"asks for the transforms \['zstd'\]"):
        restore(CheckpointRef.open(folder), job.state)


def test_a_checkpoint_of_format_version_1_is_refused_by_name(job: Job) -> None:
    job.saved(1)
    old = job.place.checkpoints / "step-7"
    old.mkdir()
    (old / "manifest.json").write_bytes(seal({"kind": "step"}, version=1))
    job.checkpointer()  # sweeps what never committed
    with pytest.raises(OtherVersionError, match="format version 1, and this release reads version 2"):
        restore_newest(job.place, job.state, recorder=job.recorder)


def test_metadata_that_is_no_metadata_is_told(job: Job) -> None:
    job.saved(1)
    folder = job.folder_of(1)
    for content in (b"\x80\x04garbage", pickle.dumps({"a": 1})):
        _replace(folder, ".metadata", content)
        with pytest.raises(CheckpointError, match="no checkpoint metadata"):
            restore(CheckpointRef.open(folder), job.state)


def test_a_model_with_more_or_fewer_or_other_tensors_is_refused_by_name(job: Job) -> None:
    job.saved(1)
    ref = CheckpointRef.open(job.folder_of(1))
    more = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(StateMismatchError, match=r"checkpoint lacks: model\.2\.bias, model\.2\.weight"):
        restore(ref, {"model": more, "dense_optimizer": job.optimizer})
    fewer = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(StateMismatchError, match=r"the model lacks: model\.1\.bias"):
        load_unsharded(ref.path, fewer)
    wider = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    with pytest.raises(StateMismatchError, match=r"model\.0\.weight \(float32\[3, 4\] saved, float32\[3, 5\]"):
        load_unsharded(ref.path, wider)


def test_a_mismatch_changes_nothing_in_the_model(job: Job) -> None:
    job.saved(1)
    fewer = nn.Sequential(nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in fewer.state_dict().items()}
    with pytest.raises(StateMismatchError):
        load_unsharded(job.folder_of(1), fewer)
    assert same(fewer.state_dict(), before)


def test_stock_dcp_reads_our_checkpoints(job: Job) -> None:
    job.saved(1)
    weights = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in job.module.state_dict().items()}
    torch.distributed.checkpoint.load(weights, checkpoint_id=job.folder_of(1), no_dist=True)
    assert same({name.removeprefix("model."): tensor for name, tensor in weights.items()}, job.module.state_dict())


def test_a_copied_checkpoint_is_as_good(job: Job, tmp_path: Path) -> None:
    job.saved(1)
    copy = tmp_path / "elsewhere"
    shutil.copytree(job.folder_of(1), copy)
    assert load_unsharded(copy, job.module).lineage.started_from_run == "r0"


def _replace(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    path = folder / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    record = hash_file(folder / name)
    document["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    path.write_bytes(seal(document, version=FORMAT_VERSION))
