"""Saving on one rank: the values of the saved step, failures that stay failures, and nothing pruned too early."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from checkpoint_job import LINEAGE, Job, job_in, progress_at, same
from torch import nn

from trainer.checkpoint import (
    CheckpointError,
    CheckpointKind,
    CheckpointMode,
    CheckpointRef,
    newest_complete,
    read_reference,
    reference_table,
    restore,
    restore_newest,
    verify,
)
from trainer.checkpoint import writer as writer_module
from trainer.checkpoint.errors import IncoherentSaveError, NotDurableError
from trainer.dpp.cursor import Interval

HOLDOUT = [Interval(0, 1, 0, 2), Interval(0, 0, 3, 4)]


@pytest.mark.parametrize("mode", CheckpointMode)
def test_a_save_holds_the_saved_steps_values_whatever_comes_next(job: Job, mode: CheckpointMode) -> None:
    """Case C5."""
    checkpointer = job.checkpointer(mode)
    job.step()
    saved = job.values()
    checkpointer.save(1, job.state, progress_at(1))
    for _ in range(3):
        job.step()
    checkpointer.close()
    assert not same(job.values(), saved)
    progress = restore(CheckpointRef.open(job.run_folder.checkpoints_dir / "step-1"), job.state)
    assert same(job.values(), saved)
    assert progress == progress_at(1)


def test_buffers_are_used_again_and_never_before_they_are_written(job: Job) -> None:
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
        restore(CheckpointRef.open(job.run_folder.checkpoints_dir / f"step-{step}"), job.state)
        assert same(job.values(), values), step


def test_a_fresh_optimizer_takes_up_its_moments(job: Job, tmp_path: Path) -> None:
    job.saved(1, 2)
    later = job_in(tmp_path, process="trainer-a2-r0")
    restored = restore_newest(later.run_folder, later.state, recorder=later.recorder)
    assert restored is not None
    assert same(later.values(), job.values())
    assert later.optimizer.param_groups[0]["lr"] == 0.1


def test_the_loop_is_blocked_under_its_own_phase_and_told_what_became_durable(job: Job) -> None:
    job.saved(1)
    [span] = job.spans("checkpoint_blocking")
    assert span["attrs"]["step"] == 1
    assert [point["step"] for point in job.points("checkpoint_dispatched")] == [1]
    [durable] = job.points("checkpoint_durable")
    folder = job.run_folder.checkpoints_dir / "step-1"
    sizes = [path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"]
    assert durable["bytes"] == sum(sizes)


@contextmanager
def _no_storage(checkpoints: Path) -> Iterator[None]:
    """Where the folder was there is a file, as after a mount went away."""
    aside = checkpoints.with_name("mounted")
    if checkpoints.exists():
        checkpoints.rename(aside)
    checkpoints.touch()
    yield
    checkpoints.unlink()
    if aside.exists():
        aside.rename(checkpoints)


def test_a_failed_save_is_never_selectable_and_later_ones_go_on(job: Job) -> None:
    """Case C2."""
    checkpointer = job.checkpointer()
    job.step()
    checkpointer.save_before_exit(1, job.state, progress_at(1))
    with _no_storage(job.run_folder.checkpoints_dir):
        checkpointer.save(2, job.state, progress_at(2))
        with pytest.raises(NotDurableError, match=r"step-2.*could not be written: .*Not a directory"):
            checkpointer.save_before_exit(2, job.state, progress_at(2))
    newest = newest_complete(job.run_folder.checkpoints_dir)
    assert newest is not None and newest.step == 1
    assert [point["step"] for point in job.points("checkpoint_failed")] == [2]

    checkpointer.save(3, job.state, progress_at(3))
    checkpointer.close()
    newest = newest_complete(job.run_folder.checkpoints_dir)
    assert newest is not None and newest.step == 3


def test_close_raises_when_the_last_save_is_lost(job: Job) -> None:
    """Case C4."""
    checkpointer = job.checkpointer()
    with _no_storage(job.run_folder.checkpoints_dir):
        checkpointer.save(1, job.state, progress_at(1))
        with pytest.raises(NotDurableError, match="the run has not succeeded"):
            checkpointer.close()
    checkpointer.close()


def test_an_anchor_that_times_out_is_no_anchor(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C4: neither the trainer nor publishing may take it for one."""
    stuck = threading.Event()
    monkeypatch.setattr(writer_module, "write_shards", lambda *_: stuck.wait(30))
    checkpointer = job.checkpointer()
    with pytest.raises(NotDurableError, match="no commit within"):
        checkpointer.save_anchor(1, {"model": job.module}, progress_at(1), _reference(), timeout_s=0.2)
    with pytest.raises(CheckpointError, match="never committed"):
        CheckpointRef.open(job.run_folder.anchor_dir)
    stuck.set()


def test_a_full_disk_fails_the_save_and_names_the_file(job: Job) -> None:
    job.module = nn.Linear(600, 600)
    checkpointer = job.checkpointer()
    checkpoints = job.run_folder.checkpoints_dir
    checkpoints.mkdir()
    with _small_disk(checkpoints):
        checkpointer.save(1, {"model": job.module}, progress_at(1))
        with pytest.raises(NotDurableError, match=r"__0_0\.distcp: could not be written.*free space"):
            checkpointer.save_before_exit(1, {"model": job.module}, progress_at(1), timeout_s=20)
        assert newest_complete(checkpoints) is None
        job.module = nn.Linear(4, 4)
        checkpointer.save(2, {"model": job.module}, progress_at(2))  # there is room for this one
        checkpointer.close()
        newest = newest_complete(checkpoints)
        assert newest is not None and newest.step == 2
    [failed] = job.points("checkpoint_failed")
    assert failed["step"] == 1


def test_a_process_killed_before_the_commit_leaves_the_previous_checkpoint_and_no_rubbish(job: Job) -> None:
    """Case C1: the pointer is the committed folder itself, and nothing goes before the next one is there."""
    job.saved(1)
    job.step()
    child = os.fork()
    if child == 0:
        _die_before_the_commit(job)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    checkpoints = job.run_folder.checkpoints_dir
    left = {path.name for path in checkpoints.iterdir()}
    assert any(name.startswith("step-2.") and name.endswith(".tmp") for name in left), left
    newest = newest_complete(checkpoints)
    assert newest is not None and newest.step == 1
    job.checkpointer()
    assert [path.name for path in checkpoints.iterdir()] == ["step-1"]


def _die_before_the_commit(job: Job) -> None:
    """In a forked child: a save is dispatched and written, and the process is killed before it commits."""
    writer_module.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpointer = job.checkpointer(keep=1)
        checkpointer.save(2, job.state, progress_at(2))
        checkpointer.close(timeout_s=20)
    finally:
        os._exit(1)


def test_only_the_newest_are_kept(job: Job) -> None:
    job.saved(1, 2, 3, 4, keep=2)
    assert sorted(path.name for path in job.run_folder.checkpoints_dir.iterdir()) == ["step-3", "step-4"]


def test_a_damaged_later_checkpoint_does_not_cost_the_good_ones_after_a_rewind(job: Job) -> None:
    """Case C1: with one to keep, the damaged step 9 counted as the newest would have the good step 2 deleted."""
    job.saved(1, 9, keep=2)
    (job.run_folder.checkpoints_dir / "step-9" / "__0_0.distcp").write_bytes(b"")
    restored = restore_newest(job.run_folder, job.state, recorder=job.recorder)
    assert restored is not None and restored.ref.step == 1
    job.saved(2, keep=1)
    restored = restore_newest(job.run_folder, job.state, recorder=job.recorder)
    assert restored is not None and restored.ref.step == 2
    job.saved(9, keep=1)
    assert [path.name for path in job.run_folder.checkpoints_dir.iterdir()] == ["step-9"]
    assert verify(CheckpointRef.open(job.run_folder.checkpoints_dir / "step-9"))


def test_a_delete_that_fails_stops_neither_saving_nor_later_deletes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree = shutil.rmtree

    def stuck(path: Path, **options: bool) -> None:
        if Path(path).name.startswith("step-1."):
            raise OSError(16, "Device or resource busy", str(path))
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stuck)
    job.saved(1, 2, 3, keep=1)
    newest = newest_complete(job.run_folder.checkpoints_dir)
    assert newest is not None and newest.step == 3
    assert not (job.run_folder.checkpoints_dir / "step-2").exists()
    pruned = job.points("checkpoint_pruned")
    assert "busy" in pruned[0]["failures"][0]
    assert pruned[1]["steps"] == [2]


def test_the_anchor_holds_the_reference_and_where_it_comes_from(job: Job) -> None:
    checkpointer = job.checkpointer()
    job.step()
    ref = checkpointer.save_anchor(7, job.state, progress_at(7, remaining=[]), _reference())
    checkpointer.close()
    manifest = verify(ref)
    assert manifest.kind is CheckpointKind.ANCHOR
    assert manifest.lineage == LINEAGE
    assert "reference.parquet" in manifest.files
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
        checkpointer.save_anchor(step, {"model": job.module}, progress_at(step), _reference())
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
    for mode in CheckpointMode:
        checkpointer = job.checkpointer(mode)
        checkpointer.save(1, state, progress_at(1))
        checkpointer.close()
        size = (job.run_folder.checkpoints_dir / "step-1" / "__0_0.distcp").stat().st_size
        assert size < 1.3 * storage.nbytes


def test_an_incoherent_tensor_is_refused(tmp_path: Path) -> None:
    from trainer.checkpoint.commit import _metadata
    from trainer.checkpoint.shards import ShardItem, ShardReport

    half = ShardItem(fqn="t", offset=0, length=9, dtype="float32", shape=(4, 2), offsets=(0, 0), sizes=(2, 2))
    report = ShardReport(rank=0, files={}, shard_file="f", items=[half], paths={"t": ["t"]}, progress=progress_at(1))
    with pytest.raises(IncoherentSaveError, match="the shards of t hold 4 of its 8 elements"):
        _metadata([report], tmp_path)


def _reference() -> pa.Table:
    return reference_table(rows=HOLDOUT, labels=[1, 0, 0], logits=[0, -1, 2])


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A file system of 1 MB under `folder`, or, where mounting is not allowed, files of at most 1 MB."""
    mounted = os.geteuid() == 0 and not _quiet(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def _quiet(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode
