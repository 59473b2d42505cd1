"""The stage file: what it says in startup and in the loop, that it is never half written, and whose it is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ett_reports.events import Phase
from trainer import stage_file
from trainer.attempt import Attempt, SupersededError
from trainer.run_folder import RunFolder
from trainer.stage_file import StageFile, StageReport, Standing, described, main, read

AT = Standing(
    step=20,
    cursor=640,
    planned_samples=6400,
    durable_step=15,
    durable_cursor=480,
    durable_unix_ns=1,
    estimated_save_s=0.4,
)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.of("refresh", "run", tmp_path).create()


@pytest.fixture
def begin(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StageFile]]:
    monkeypatch.setattr(stage_file, "EVERY_S", 0.02)
    begun: list[StageFile] = []

    def start(attempt: int, phase: Phase = Phase.TRAIN_MODULE, superseded: Any = None) -> StageFile:
        begun.append(StageFile(folder, attempt, phase=lambda: phase, superseded=superseded))
        begun[-1].start()
        return begun[-1]

    yield start
    for each in begun:
        each.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_startup_says_its_stage_and_claims_nothing_else(folder: RunFolder, begin: Callable[..., StageFile]):
    begin(2)
    report = read(folder)
    assert report is not None
    assert (report.attempt, report.stage) == (2, Phase.TRAIN_MODULE)
    assert report.cursor is report.samples_at_risk is report.seconds_since_durable is None


def test_the_loop_says_what_an_end_now_would_cost():
    report = StageReport.of(1, Phase.STEP, AT, now_unix_ns=2_500_000_001)
    assert (report.step, report.cursor, report.samples_at_risk) == (20, 640, 160)
    assert (report.seconds_since_durable, report.estimated_save_s) == (2.5, 0.4)
    without = StageReport.of(1, Phase.STEP, Standing(step=3, cursor=96, planned_samples=6400), now_unix_ns=7)
    assert (without.samples_at_risk, without.seconds_since_durable) == (96, None)


def test_it_follows_the_progress_and_readers_never_see_half_of_it(folder: RunFolder, begin: Callable[..., StageFile]):
    steps = iter(range(1, 1_000_000))
    written = begin(1, Phase.STEP)
    written.follow(lambda: Standing(step=next(steps), cursor=0, planned_samples=1))
    seen = set()
    until(lambda: seen.add(read(folder)) or len(seen) > 10)
    assert None not in seen
    written.close()
    assert sorted(path.name for path in folder.root.iterdir()) == ["stage.json"]


def test_a_disk_that_is_full_or_gone_stops_nothing(folder: RunFolder, begin: Callable[..., StageFile]):
    written = begin(1)
    (folder.root / "stage.json").unlink()
    folder.root.rmdir()
    time.sleep(0.1)
    folder.create()
    until(lambda: read(folder))
    written.close()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 1, "attempt": 1}', '{"version": 99, "stage": "step"}']
)
def test_what_cannot_be_read_is_nothing(folder: RunFolder, content: str):
    (folder.root / "stage.json").write_text(content)
    assert read(folder) is None


def test_fields_of_a_later_release_are_passed_over(folder: RunFolder):
    text = StageReport.of(1, Phase.STEP, AT, now_unix_ns=5).to_json()
    (folder.root / "stage.json").write_text(json.dumps({**json.loads(text), "mood": "good"}))
    assert read(folder) == StageReport.of(1, Phase.STEP, AT, now_unix_ns=5)


def test_an_attempt_learns_that_a_newer_one_has_begun_and_leaves_the_file_to_it(
    folder: RunFolder, begin: Callable[..., StageFile]
):
    told: list[int] = []
    superseded = threading.Event()
    begin(1, superseded=lambda newer: (told.append(newer), superseded.set()))
    begin(2)
    assert superseded.wait(30)
    assert told == [2]
    report = read(folder)
    assert report is not None
    assert report.attempt == 2


def test_a_process_of_an_earlier_attempt_that_comes_late_is_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    def second_attempt_was_there(seconds_ago: float) -> None:
        written = time.time_ns() - round(seconds_ago * 1e9)
        (folder.root / "stage.json").write_text(StageReport.of(2, Phase.STEP, AT, written).to_json())

    monkeypatch.setenv("ETT_RUN_FOLDER", folder.url)
    second_attempt_was_there(seconds_ago=2)
    for number in ("2", "3"):
        Attempt.from_environment({"ETT_ATTEMPT": number}).check_newest()
    with pytest.raises(SupersededError, match=r"attempt 2 has begun; to start another by hand .* ETT_ATTEMPT=3"):
        Attempt.from_environment({"ETT_ATTEMPT": "1"}).check_newest()
    second_attempt_was_there(seconds_ago=3600)  # nobody to disturb: a launcher that lost its records may count anew
    Attempt.from_environment({"ETT_ATTEMPT": "1"}).check_newest()


def test_people_can_read_it(folder: RunFolder, capsys: pytest.CaptureFixture[str]):
    assert main([str(folder.root)]) == 1
    assert "no attempt" in capsys.readouterr().err
    text = described(StageReport.of(2, Phase.STEP, AT, now_unix_ns=4_000_000_001), now_unix_ns=4_300_000_001)
    assert text.splitlines() == [
        "attempt 2: training",
        "step 20, sample 640 of 6400 (10.0%)",
        "last checkpoint at step 15, sample 480, 4.0 s before this was written",
        "160 samples would be trained again if it ended now without a save",
        "a save takes about 0.4 s",
        "written 0.3 s ago",
    ]
    (folder.root / "stage.json").write_text(StageReport.of(1, Phase.COMPILE, None, now_unix_ns=5).to_json())
    assert main([str(folder.root)]) == 0
    assert "attempt 1: compile" in capsys.readouterr().out
