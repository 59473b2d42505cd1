"""The same protocol in an object store: one PUT makes a checkpoint, and what never committed is swept."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
import torch
from checkpoint_job import Job, job_in, progress_at, reference, same
from s3fs import S3FileSystem
from torch import nn

from trainer.checkpoint import (
    CheckpointRef,
    load_unsharded,
    newest_complete,
    read_reference,
    restore,
    verify,
)
from trainer.checkpoint.durable import HashedFile
from trainer.checkpoint.errors import ChangedFileError, CheckpointWriteError
from trainer.checkpoint.retention import sweep
from trainer.storage import CheckpointPlace, StorageError, located, names_in


@pytest.fixture
def job_on_s3(job: Job, s3: str) -> Job:
    job.at = CheckpointPlace.below(located(f"{s3}/models/movies/r1"))
    return job


def test_the_newest_intact_checkpoint_is_restored_from_an_object_store(job_on_s3: Job, tmp_path: Path) -> None:
    job = job_on_s3
    job.saved(1, 2, 3, keep=2)
    assert job.steps() == ["step-2", "step-3"]
    values = job.values()
    later = job_in(tmp_path, process="trainer-a2-r0")
    later.at = job.at
    checkpointer = later.checkpointer()
    restored = checkpointer.restore_newest(later.state)
    assert restored is not None and restored.progress == progress_at(3)
    assert same(later.values(), values)
    shard = restored.ref.path / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ChangedFileError, match=r"s3://.*__0_0\.distcp: its bytes changed"):
        verify(restored.ref)
    restored = checkpointer.restore_newest(later.state)
    assert restored is not None and restored.ref.step == 2
    assert not list(job.run_folder.root.glob("checkpoints*"))


def test_what_never_committed_in_an_object_store_is_no_candidate_and_swept(job_on_s3: Job) -> None:
    job = job_on_s3
    job.saved(1)
    place = job.place
    (place.checkpoints / "step-9-0123-1" / "__0_0.distcp").write_bytes(b"half")
    (place.anchor / "0123-1.__0_0.distcp").write_bytes(b"half")
    newest = newest_complete(place.checkpoints)
    assert newest is not None and newest.step == 1
    job.checkpointer()
    assert job.steps() == ["step-1"]
    assert names_in(place.anchor) == []


def test_an_anchor_in_an_object_store_is_replaced_in_one_step_and_opened_by_its_url(job_on_s3: Job) -> None:
    job = job_on_s3
    for step in (1, 2):
        job.step()
        checkpointer = job.checkpointer()
        checkpointer.save_anchor(step, job.state, progress_at(step), reference())
        checkpointer.close()
    ref = CheckpointRef.open(str(job.place.anchor))
    assert ref.step == 2
    assert names_in(ref.path) == sorted(["manifest.json", *verify(ref).files])
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    load_unsharded(ref.path, module)
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in job.module.state_dict().items())
    assert read_reference(ref.path).num_rows == 3
    assert restore(ref, job.state) == progress_at(2)


def test_an_upload_that_breaks_off_leaves_no_parts_behind(
    s3: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store keeps the parts of an upload that nobody finishes, unseen and paid for."""
    monkeypatch.setattr(S3FileSystem, "default_block_size", 5 << 20)
    client, bucket = boto3.client("s3", endpoint_url=s3_endpoint), s3.removeprefix("s3://")
    path = located(f"{s3}/run/shard")
    with pytest.raises(ZeroDivisionError), HashedFile(path) as stream:
        stream.write(bytes(11 << 20))
        assert client.list_multipart_uploads(Bucket=bucket)["Uploads"]
        raise ZeroDivisionError
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    assert names_in(path.parent) == []
    with HashedFile(path) as stream:
        stream.write(bytes(11 << 20))
    assert stream.record().bytes == path.stat().st_size == 11 << 20


def test_a_store_out_of_reach_fails_the_save_and_never_counts_as_an_empty_one(
    job_on_s3: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for empty, a run would start anew and a sweep would delete what is committed."""
    job = job_on_s3
    job.saved(1)
    checkpointer = job.checkpointer()
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    with monkeypatch.context() as away:
        away.setattr(S3FileSystem, "_call_s3", _no_answer)
        with pytest.raises(StorageError, match="check the address and the credentials"):
            checkpointer.restore_newest(job.state)
        with pytest.raises(StorageError):
            newest_complete(job.place.checkpoints)
        assert len(sweep(job.place).failures) == 2
        with pytest.raises(CheckpointWriteError, match=r"s3://.*step-2.*could not be written"):
            raise _failure_of_a_save(job)
    restored = checkpointer.restore_newest(job.state)
    assert restored is not None and restored.ref.step == 1


def _failure_of_a_save(job: Job) -> Exception:
    checkpointer = job.checkpointer()
    checkpointer.save(2, job.state, progress_at(2))
    checkpointer._jobs.put(None)
    assert checkpointer._thread is not None
    checkpointer._thread.join(20)
    assert checkpointer.failure is not None
    return checkpointer.failure


async def _no_answer(*_: object, **__: object) -> None:
    from botocore.exceptions import EndpointConnectionError

    raise EndpointConnectionError(endpoint_url="http://nowhere")
