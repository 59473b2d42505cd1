"""Reading on in the ranks' logs from where one was."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.launch.job_folder import JobFolder
from trainer.launch.log_files import appended


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "session" / "app" / "role" / "1" / "combined.log"
    path.parent.mkdir(parents=True)
    return path


def test_each_line_is_given_once_and_only_when_it_is_whole(log: Path, tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    log.write_text("one\ntwo\nthr")
    lines, position = appended(folder, {}, 100)
    assert lines == ["[1] one", "[1] two"]
    assert appended(folder, position, 100) == ([], position)
    log.write_text("one\ntwo\nthree\n")
    lines, position = appended(folder, position, 100)
    assert lines == ["[1] three"]
    assert appended(folder, position, 100) == ([], position)


def test_of_much_only_the_last_is_given_and_the_rest_is_said_to_be_left_out(log: Path, tmp_path: Path) -> None:
    log.write_text("".join(f"{number:04d}\n" for number in range(1000)))
    lines, position = appended(JobFolder(tmp_path), {}, 20)
    assert lines == [f"[1] ... 4,980 bytes left out, see {log}", "[1] 0996", "[1] 0997", "[1] 0998", "[1] 0999"]
    assert position == {1: 5000}


def test_a_log_that_was_started_anew_is_read_from_its_start(log: Path, tmp_path: Path) -> None:
    log.write_text("new\n")
    assert appended(JobFolder(tmp_path), {1: 500}, 100)[0] == ["[1] new"]
