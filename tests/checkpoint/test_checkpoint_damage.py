"""Every way in which a checkpoint on the disk can be wrong is told by its own error, before anything is unpickled."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
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


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def change_the_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"cursor": 20', '"cursor": 10'))


def empty_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


DAMAGE = [
    (tear, TornFileError, SHARD),
    (change_a_byte, ChangedFileError, SHARD),
    (lose_a_file, MissingFileError, SHARD),
    (lose_the_manifest, MissingManifestError, "never committed"),
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
    newest = job.run_folder.checkpoints_dir / "step-2"
    ref = CheckpointRef.open(newest)
    damage(newest)

    with pytest.raises(error, match=names):
        verify(ref)
    with pytest.raises(error):
        restore(ref, job.state)
    restored = restore_newest(job.run_folder, job.state, recorder=job.recorder)
    assert restored is not None
    assert restored.ref.step == restored.progress.step == 1
    assert same(job.values(), at_one)
    [rejected] = job.points("checkpoint_rejected")
    assert rejected["checkpoint"] == "step-2"
    assert [point["step"] for point in job.points("restored")] == [1]


def test_another_format_version_is_told_and_nothing_older_is_taken_silently(job: Job) -> None:
    job.saved(1, 2)
    path = job.run_folder.checkpoints_dir / "step-2" / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    path.write_bytes(seal(document, version=FORMAT_VERSION + 1))
    for attempt in (
        lambda: CheckpointRef.open(path.parent),
        lambda: restore_newest(job.run_folder, job.state, recorder=job.recorder),
        lambda: newest_complete(job.run_folder.checkpoints_dir),
    ):
        with pytest.raises(OtherVersionError, match="format version 2, and this release reads version 1"):
            attempt()


def test_a_poisoned_metadata_pickle_is_named_and_not_run(job: Job, tmp_path: Path) -> None:
    """Whoever can write the folder can write the manifest too, so the hashes are made to fit."""
    job.saved(1)
    folder = job.run_folder.checkpoints_dir / "step-1"
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
        restore(CheckpointRef.open(job.run_folder.checkpoints_dir / "step-1"), state)
    assert not touched.exists()


def test_metadata_that_is_no_metadata_is_told(job: Job) -> None:
    job.saved(1)
    folder = job.run_folder.checkpoints_dir / "step-1"
    for content in (b"\x80\x04garbage", pickle.dumps({"a": 1})):
        _replace(folder, ".metadata", content)
        with pytest.raises(CheckpointError, match="no checkpoint metadata"):
            restore(CheckpointRef.open(folder), job.state)


def test_a_model_with_more_or_fewer_or_other_tensors_is_refused_by_name(job: Job) -> None:
    job.saved(1)
    ref = CheckpointRef.open(job.run_folder.checkpoints_dir / "step-1")
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
        load_unsharded(job.run_folder.checkpoints_dir / "step-1", fewer)
    assert same(fewer.state_dict(), before)


def test_stock_dcp_reads_our_checkpoints(job: Job) -> None:
    job.saved(1)
    weights = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in job.module.state_dict().items()}
    torch.distributed.checkpoint.load(weights, checkpoint_id=job.run_folder.checkpoints_dir / "step-1", no_dist=True)
    assert same({name.removeprefix("model."): tensor for name, tensor in weights.items()}, job.module.state_dict())


def test_a_copied_checkpoint_is_as_good(job: Job, tmp_path: Path) -> None:
    job.saved(1)
    copy = tmp_path / "elsewhere"
    shutil.copytree(job.run_folder.checkpoints_dir / "step-1", copy)
    assert load_unsharded(copy, job.module).lineage.started_from_run == "r0"


def _replace(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    path = folder / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    record = hash_file(folder / name)
    document["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    path.write_bytes(seal(document, version=FORMAT_VERSION))
