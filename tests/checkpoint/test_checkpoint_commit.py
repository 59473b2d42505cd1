"""The commit: whatever happens to a save, one whole checkpoint is there, and none goes before a newer one has come."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_job import Job, job_in, progress_at, reference, same
from torch import nn

from trainer.checkpoint import (
    CheckpointError,
    CheckpointMode,
    CheckpointRef,
    Manifest,
    newest_complete,
    restore_newest,
    verify,
)
from trainer.checkpoint import writer as writer_module
from trainer.checkpoint.durable import HashedFile
from trainer.checkpoint.errors import NotDurableError
from trainer.checkpoint.outlook import Outlook
from trainer.checkpoint.retention import committed_folders
from trainer.checkpoint.shards import failure_at, report_failure


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


def test_c2_a_failed_save_is_never_selectable_and_later_ones_go_on(job: Job) -> None:
    checkpointer = job.checkpointer()
    job.step()
    checkpointer.save_before_exit(1, job.state, progress_at(1))
    with _no_storage(job.run_folder.checkpoints_dir):
        checkpointer.save(2, job.state, progress_at(2))
        with pytest.raises(NotDurableError, match=r"step-2.*could not be written: .*Not a directory"):
            checkpointer.save_before_exit(2, job.state, progress_at(2))
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 1
    assert [point["step"] for point in job.points("checkpoint_failed")] == [2]

    checkpointer.save(3, job.state, progress_at(3))
    checkpointer.close()
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 3


def test_c4_close_raises_when_the_last_save_is_lost(job: Job) -> None:
    checkpointer = job.checkpointer()
    with _no_storage(job.run_folder.checkpoints_dir):
        checkpointer.save(1, job.state, progress_at(1))
        with pytest.raises(NotDurableError, match="the run has not succeeded"):
            checkpointer.close()
    checkpointer.close()


def test_c4_an_anchor_that_times_out_is_no_anchor(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trainer nor publishing may take it for one."""
    stuck = threading.Event()
    monkeypatch.setattr(writer_module, "write_shards", lambda *_: stuck.wait(30))
    checkpointer = job.checkpointer()
    with pytest.raises(NotDurableError, match="no commit within"):
        checkpointer.save_anchor(1, {"model": job.module}, progress_at(1), reference(), timeout_s=0.2)
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


def test_a_rank_tells_its_failure_on_a_disk_without_a_single_free_block(tmp_path: Path) -> None:
    """Rank 0 waits for its word; without one it would wait until the save's deadline."""
    told = tmp_path / "rank-1.failed.json"
    with _small_disk(tmp_path):
        with contextlib.suppress(OSError), (tmp_path / "full").open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        report_failure(told, "no space", shard=tmp_path / "__1_0.distcp")
        assert failure_at(told) == "it had no room to say why; is the storage full?"
        (tmp_path / "full").unlink()
        report_failure(told, "no space", shard=tmp_path / "__1_0.distcp")
        assert failure_at(told) == "no space"


def test_c1_a_process_killed_before_the_commit_leaves_the_previous_checkpoint_and_no_rubbish(job: Job) -> None:
    """The pointer is the committed folder itself, and nothing goes before the next one is there."""
    job.saved(1)
    job.step()
    child = os.fork()
    if child == 0:
        _die_before_the_commit(job)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert job.steps() == ["step-1", "step-2"]
    assert not (job.folder_of(2) / "manifest.json").exists()
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 1
    job.checkpointer()
    assert job.steps() == ["step-1"]


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
    assert job.steps() == ["step-3", "step-4"]


def test_c1_a_damaged_later_checkpoint_does_not_cost_the_good_ones_after_a_rewind(job: Job) -> None:
    """With one to keep, the damaged step 9 counted as the newest would have the good step 2 deleted."""
    job.saved(1, 9, keep=2)
    (job.folder_of(9) / "__0_0.distcp").write_bytes(b"")
    restored = restore_newest(job.place, job.state, recorder=job.recorder)
    assert restored is not None and restored.ref.step == 1
    job.saved(2, keep=1)
    restored = restore_newest(job.place, job.state, recorder=job.recorder)
    assert restored is not None and restored.ref.step == 2
    job.saved(9, keep=1)
    assert job.steps() == ["step-9"]
    assert verify(CheckpointRef.open(job.folder_of(9)))


def test_a_delete_that_fails_stops_neither_saving_nor_later_deletes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree = shutil.rmtree

    def stuck(path: Path, **options: bool) -> None:
        if Path(path).name.startswith("step-1-"):
            raise OSError(16, "Device or resource busy", str(path))
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stuck)
    job.saved(1, 2, 3, keep=1)
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 3
    assert job.steps() == ["step-1", "step-3"]
    pruned = job.points("checkpoint_pruned")
    assert "busy" in pruned[0]["failures"][0]
    assert pruned[1]["steps"] == [2]


@pytest.mark.parametrize("kind", ["step", "anchor"])
def test_c1_killed_before_any_disk_operation_of_a_save_one_whole_checkpoint_is_there(
    job: Job, tmp_path: Path, kind: str
) -> None:
    """Also in mid-commit and mid-retention: the save is wholly there or wholly not, and the next attempt tidies up."""
    job.step()
    _save(job, kind, 1)
    values = {1: job.values()}
    job.step()
    values[2] = job.values()
    later = job_in(tmp_path, process="trainer-a2-r0")
    shutil.copytree(job.run_folder.root, tmp_path / "before")
    survived = []
    for nth in range(1, 100):
        child = os.fork()
        if child == 0:
            _die_before(nth, lambda: _save(job, kind, 2))
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert killed in (0, -signal.SIGKILL)
        later.checkpointer()  # sweeps
        if kind == "step":
            restored = restore_newest(later.place, later.state, recorder=later.recorder)
            assert restored is not None
            ref = restored.ref
            assert same(later.values(), values[ref.step])
            assert {folder.name for folder in later.place.checkpoints.iterdir()} >= {ref.path.name}
            assert len(committed_folders(later.place.checkpoints)) == len(list(later.place.checkpoints.iterdir()))
        else:
            ref = CheckpointRef.open(later.place.anchor)
            names = {path.name for path in later.place.anchor.iterdir()}
            assert names == {"manifest.json", *verify(ref).files}
        survived.append(ref.step)
        if killed == 0:
            break
        shutil.rmtree(job.run_folder.root)
        shutil.copytree(tmp_path / "before", job.run_folder.root)
    assert survived == sorted(survived)
    assert set(survived) == {1, 2}
    assert len(survived) > 10


def _save(job: Job, kind: str, step: int) -> None:
    checkpointer = job.checkpointer(CheckpointMode.SYNC, keep=1)
    if kind == "step":
        checkpointer.save(step, job.state, progress_at(step))
    else:
        checkpointer.save_anchor(step, job.state, progress_at(step), reference())
    checkpointer.close()


def _die_before(nth: int, action: Callable[[], None]) -> None:
    """In a forked child: SIGKILL before the `nth` operation that changes the disk."""
    left = nth

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **options)

        return run

    for name in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    try:
        action()
        os._exit(0)
    finally:
        os._exit(1)


def test_c1_the_checkpoint_resumed_from_stays_until_a_newer_one_has_committed(job: Job, tmp_path: Path) -> None:
    job.saved(5)
    resumed = job_in(tmp_path, process="trainer-a2-r0")
    checkpointer = resumed.checkpointer(CheckpointMode.SYNC, keep=1)
    restored = checkpointer.restore_newest(resumed.state)
    assert restored is not None and restored.ref.path == job.folder_of(5)
    checkpointer.save(5, resumed.state, progress_at(5))
    assert restored.ref.path.exists()
    checkpointer.save(6, resumed.state, progress_at(6))
    assert job.steps() == ["step-6"]
    checkpointer.close()


def test_of_two_saves_of_one_step_the_later_attempts_is_taken(job: Job, tmp_path: Path) -> None:
    """A rewind past a damaged checkpoint saves the same steps again."""
    job.saved(5)
    again = job_in(tmp_path, process="trainer-a2-r0")
    again.saved(5)
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None
    assert newest.path.name == sorted(path.name for path in job.place.checkpoints.iterdir())[-1]
    (newest.path / "manifest.json").write_text("{")
    assert job.checkpointer().restore_newest(job.state) is not None


def test_checkpoints_that_were_rejected_do_not_count_as_kept(job: Job, tmp_path: Path) -> None:
    job.saved(1, 2)
    (job.folder_of(2) / "__0_0.distcp").write_bytes(b"")
    later = job_in(tmp_path, process="trainer-a2-r0")
    checkpointer = later.checkpointer(CheckpointMode.SYNC, keep=2)
    restored = checkpointer.restore_newest(later.state)
    assert restored is not None
    assert restored.rejected == (job.folder_of(2).name,)
    checkpointer.save(3, later.state, progress_at(3))
    assert job.steps() == ["step-1", "step-3"]
    checkpointer.close()


def test_a_manifest_that_appeared_although_its_writing_failed_is_not_undone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store's answer may be lost, a folder's flush may fail: what others may have seen must not be taken back."""
    write = Manifest.write

    def lost_answer(self: Manifest, folder: Path) -> None:
        write(self, folder)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Manifest, "write", lost_answer)
    checkpointer = job.checkpointer()
    checkpointer.save(1, job.state, progress_at(1))
    checkpointer.save_anchor(2, job.state, progress_at(2), reference())
    checkpointer.close()
    assert "Input/output error" in str(checkpointer.failure)
    assert verify(CheckpointRef.open(job.folder_of(1))).progress.step == 1
    assert verify(CheckpointRef.open(job.place.anchor)).progress.step == 2


def test_c2_a_background_failure_is_seen_at_the_next_step_and_not_forgotten(job: Job) -> None:
    checkpointer = job.checkpointer()
    assert checkpointer.failure is None
    with _no_storage(job.place.checkpoints):
        checkpointer.save(1, job.state, progress_at(1))
        with pytest.raises(NotDurableError):
            checkpointer.wait()
    seen = checkpointer.failure
    assert seen is not None and "step-1" in str(seen.path)
    checkpointer.save(2, job.state, progress_at(2))
    checkpointer.close()
    assert checkpointer.failure is seen
    assert job.steps() == ["step-2"]


def test_a_slow_disk_in_mid_save_blocks_nobody_and_the_checkpoint_before_stands(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.saved(1)
    moves, write = threading.Event(), HashedFile.write

    def slowly(self: HashedFile, data: Any) -> int:
        moves.wait(30)
        return write(self, data)

    monkeypatch.setattr(HashedFile, "write", slowly)
    checkpointer = job.checkpointer()
    checkpointer.save(2, job.state, progress_at(2))
    assert checkpointer.busy
    assert checkpointer.failure is None
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 1
    with pytest.raises(NotDurableError, match=r"no commit within 0\.1 s"):
        checkpointer.wait(timeout_s=0.1)
    with pytest.raises(NotDurableError, match="the save before it still holds the buffers"):
        checkpointer.save_before_exit(3, job.state, progress_at(3), timeout_s=0.1)
    moves.set()
    checkpointer.close()
    newest = newest_complete(job.place.checkpoints)
    assert newest is not None and newest.step == 2


def test_what_is_durable_and_how_long_a_save_takes_is_known_at_any_time(job: Job, tmp_path: Path) -> None:
    job.step()
    checkpointer = job.checkpointer()
    assert checkpointer.last_durable is None
    assert checkpointer.estimated_save_s is None
    checkpointer.save_before_exit(1, job.state, progress_at(1))
    durable = checkpointer.last_durable
    assert durable is not None and (durable.step, durable.cursor) == (1, 10)
    assert checkpointer.estimated_save_s == durable.seconds > 0
    checkpointer.close()

    resumed = job_in(tmp_path, process="trainer-a2-r0").checkpointer()
    restored = resumed.restore_newest(job.state)
    assert restored is not None
    assert resumed.last_durable is not None and resumed.last_durable.step == 1
    assert resumed.estimated_save_s == restored.manifest.save_seconds > 0


def test_a_save_takes_as_long_as_the_slowest_of_late_and_what_the_one_before_it_still_needs() -> None:
    outlook, ref = Outlook(), CheckpointRef(Path("step-1"), 1, 10)
    for seconds in (90.0, 1.0, 4.0, 2.0, 1.0, 1.0):
        outlook.committed(ref, seconds=seconds)
    assert outlook.estimated_save_s(unfinished_since_s=None) == 4.0
    assert outlook.estimated_save_s(unfinished_since_s=1.0) == 7.0
    assert outlook.estimated_save_s(unfinished_since_s=60.0) == 4.0


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
