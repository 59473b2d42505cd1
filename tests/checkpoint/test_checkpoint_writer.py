"""Saving on one rank: the values of the saved step, failures that stay failures, and nothing pruned too early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_job import HOLDOUT, LINEAGE, Job, job_in, progress_at, reference, same

from trainer.checkpoint import (
    CheckpointKind,
    CheckpointMode,
    CheckpointRef,
    read_reference,
    reference_table,
    restore,
    restore_newest,
    verify,
)
from trainer.checkpoint.errors import IncoherentSaveError, NotDurableError
from trainer.dpp.cursor import Interval


@pytest.mark.parametrize("mode", CheckpointMode)
def test_c5_a_save_holds_the_saved_steps_values_whatever_comes_next(job: Job, mode: CheckpointMode) -> None:
    """Case C5."""
    checkpointer = job.checkpointer(mode)
    job.step()
    saved = job.values()
    checkpointer.save(1, job.state, progress_at(1))
    for _ in range(3):
        job.step()
    checkpointer.close()
    assert not same(job.values(), saved)
    progress = restore(CheckpointRef.open(job.folder_of(1)), job.state)
    assert same(job.values(), saved)
    assert progress == progress_at(1)


def test_c5_buffers_are_used_again_and_never_before_they_are_written(job: Job) -> None:
    """Case C5 for saves so close together that the first is still being written."""
    checkpointer = job.checkpointer(keep=9)
    checkpointer.preallocate(job.state)
    saved = {}
    for step in range(1, 5):
        job.step()
        saved[step] = job.values()
        checkpointer.save(step, job.state, progress_at(step))
    checkpointer.close()
    for step, values in saved.items():
        restore(CheckpointRef.open(job.folder_of(step)), job.state)
        assert same(job.values(), values), step


def test_a_fresh_optimizer_takes_up_its_moments(job: Job, tmp_path: Path) -> None:
    job.saved(1, 2)
    later = job_in(tmp_path, process="trainer-a2-r0")
    restored = restore_newest(later.place, later.state, recorder=later.recorder)
    assert restored is not None
    assert same(later.values(), job.values())
    assert later.optimizer.param_groups[0]["lr"] == 0.1


def test_the_loop_is_blocked_under_its_own_phase_and_told_what_became_durable(job: Job) -> None:
    job.saved(1)
    [span] = job.spans("checkpoint_blocking")
    assert span["attrs"]["step"] == 1
    assert [point["step"] for point in job.points("checkpoint_dispatched")] == [1]
    [durable] = job.points("checkpoint_durable")
    folder = job.folder_of(1)
    sizes = [path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"]
    assert durable["bytes"] == sum(sizes)


def test_the_anchor_holds_the_reference_and_where_it_comes_from(job: Job) -> None:
    checkpointer = job.checkpointer()
    job.step()
    ref = checkpointer.save_anchor(7, job.state, progress_at(7, remaining=[]), reference())
    checkpointer.close()
    manifest = verify(ref)
    assert manifest.kind is CheckpointKind.ANCHOR
    assert manifest.lineage == LINEAGE
    assert manifest.reference in manifest.files
    # The folder's name is the same for every save, so the files' tell them apart.
    assert all(name.startswith(manifest.save_id) for name in manifest.files)
    table = read_reference(job.run_folder.anchor_dir)
    assert table.to_pydict() == {
        "file": [0, 0, 0],
        "row_group": [0, 1, 1],
        "row": [3, 0, 1],
        "label": [0.0, 1.0, 0.0],
        "logit": [2.0, 0.0, -1.0],
        "probability": [pytest.approx(0.8807970779778823), 0.5, pytest.approx(0.2689414213699951)],
    }
    assert len(job.spans("final_checkpoint")) == 1


def test_an_anchor_saved_again_replaces_the_first(job: Job) -> None:
    for step in (1, 2):
        checkpointer = job.checkpointer()
        checkpointer.save_anchor(step, {"model": job.module}, progress_at(step), reference())
        checkpointer.close()
    assert CheckpointRef.open(job.run_folder.anchor_dir).step == 2
    assert [path.name for path in job.run_folder.root.glob("anchor*")] == ["anchor"]


def test_holdout_rows_scored_twice_are_refused(job: Job) -> None:
    checkpointer = job.checkpointer()
    twice = reference_table(rows=[Interval(0, 0, 0, 2), Interval(0, 0, 1, 2)], labels=[0, 1, 1], logits=[0, 1, 1])
    with pytest.raises(NotDurableError, match="1 holdout rows were scored twice"):
        checkpointer.save_anchor(1, {"model": job.module}, progress_at(1), twice, timeout_s=20)


def test_a_reference_of_unequal_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows, 2 labels and 3 logits"):
        reference_table(rows=HOLDOUT, labels=[0, 1], logits=[0, 1, 2])


def test_views_into_one_storage_are_saved_once_each(job: Job) -> None:
    """Tables of torchrec are views into one storage for many; torch.save would write all of it for each."""
    storage = torch.randn(1000, 16)
    state = {"model": {f"table{number}": storage[number * 100 : (number + 1) * 100] for number in range(10)}}
    for step, mode in enumerate(CheckpointMode):
        checkpointer = job.checkpointer(mode)
        checkpointer.save(step, state, progress_at(step))
        checkpointer.close()
        size = (job.folder_of(step) / "__0_0.distcp").stat().st_size
        assert size < 1.3 * storage.nbytes


def test_an_incoherent_tensor_is_refused(tmp_path: Path) -> None:
    from trainer.checkpoint.commit import _metadata
    from trainer.checkpoint.shards import ShardItem, ShardReport

    half = ShardItem(fqn="t", offset=0, length=9, dtype="float32", shape=(4, 2), offsets=(0, 0), sizes=(2, 2))
    report = ShardReport(rank=0, files={}, shard_file="f", items=[half], paths={"t": ["t"]}, progress=progress_at(1))
    with pytest.raises(IncoherentSaveError, match="the shards of t hold 4 of its 8 elements"):
        _metadata([report], tmp_path)
