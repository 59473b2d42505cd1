"""Records on disks that are full or closed: clear errors, nothing half-written."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.launch import JobState, RecordWriteError, conclusion
from trainer.launch.file_lock import FileLock, locked_elsewhere
from trainer.launch.job_folder import JobFolder
from trainer.launch.records import read_record, write_record


def test_a_full_disk_leaves_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_record(path, {"state": "old"})
    (tmp_path / f".status.json.{os.getpid()}.writing").symlink_to("/dev/full")
    with pytest.raises(RecordWriteError, match="No space left on device") as raised:
        write_record(path, {"state": "new"})
    assert raised.value.errno == errno.ENOSPC
    assert read_record(path) == {"state": "old"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]
    write_record(path, {"state": "new"})
    assert read_record(path) == {"state": "new"}


def test_a_place_that_cannot_be_written_registers_nothing(jobs) -> None:
    (jobs.home / "local").write_text("in the way")
    with pytest.raises(RecordWriteError, match="submit again"):
        jobs.submit("*:exit:0")
    (jobs.home / "local").unlink()
    assert jobs.run("*:exit:0").state is JobState.SUCCEEDED


def test_a_probe_does_not_take_the_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert not locked_elsewhere(lock.path)
    with lock:
        assert locked_elsewhere(lock.path)
        assert not FileLock(lock.path).try_acquire()
    assert not locked_elsewhere(lock.path)


def test_an_end_is_told_once_there_is_room_again(jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclusion, "_WRITE_RETRY_S", 0.01)
    folder = JobFolder.of(jobs.submit("*:exit:0").id)
    jobs.until(lambda: folder.status().status.terminal, "no end")
    (folder.root / f".status.json.{os.getpid()}.writing").symlink_to("/dev/full")
    status = replace(folder.status().status, message="told again")
    request = folder.registration().request
    conclusion.conclude(folder, request, conclusion.shipper_for(folder, request), status)
    assert folder.status().status.message == "told again"
