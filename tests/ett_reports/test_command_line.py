"""`python -m ett_reports`: run and validate, and exit code 2 with one line for wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ett_reports.__main__ import main
from ett_reports.levels import reduce
from ett_reports.plain_text import render
from ett_reports.reader import read_log
from ett_reports.report import JobReport, from_json
from tests.ett_reports.story import Story


@pytest.fixture
def events(tmp_path: Path) -> Path:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    story.trainer(1, 0).at(10).begin(0).steps(9).finish()
    story.complete(1, 100)
    return tmp_path / "events"


def test_plain_text_opens_on_the_answer(events: Path) -> None:
    first = render(reduce(read_log(events))).splitlines()[0]
    assert "ETT 90.00%" in first and "shop/run-1" in first


def test_run_prints_the_answer(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(events)]) == 0
    assert "90.0" in capsys.readouterr().out


def test_run_json_is_a_report_document(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(events), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    report = from_json(document)
    assert isinstance(report, JobReport) and report.ett == 0.9 and document["ett"] == 0.9
    assert document["refresh"] is None


def test_validate(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(events)]) == 0
    with next(events.rglob("*.jsonl")).open("a") as file:
        file.write('{"v":1,')
    assert main(["validate", str(events)]) == 1
    assert "torn lines: 1" in capsys.readouterr().out
    assert main(["validate", str(events), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["quality"]["torn_lines"] == 1


def test_wrong_input_is_one_line_and_exit_code_2(
    tmp_path: Path, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.jsonl").write_text("not JSON\n")
    Story(tmp_path / "nobody").launcher.recorder.close()
    for given in (
        ["run", str(tmp_path / "absent")],
        ["run", str(tmp_path / "empty")],
        ["run", str(tmp_path / "text.jsonl")],
        ["run", str(tmp_path / "nobody")],
        ["validate", str(tmp_path / "empty")],
        ["run", str(events), "--now", "yesterday"],
    ):
        assert main(given) == 2, given
        told = capsys.readouterr()
        assert told.out == "" and len(told.err.splitlines()) == 1 and told.err.startswith("ett_reports: ")


def test_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ett_reports", "run", str(tmp_path / "absent")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_untrusted_text_does_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path / "events", job="shop/\x1b[2Jrun")
    story.submit(1, 0)
    story.trainer(1, 0)
    story.launcher.at(5).point("failure", attempt=1, cause="application", message="\x1b]0;owned\x07")
    story.launcher.point("released", attempt=1, outcome="failed")
    assert main(["run", str(tmp_path / "events")]) == 0
    out = capsys.readouterr().out + render(reduce(read_log(tmp_path / "events")))
    assert "\x1b" not in out and "\x07" not in out


def test_validate_is_clean_after_a_kill_and_with_points_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    story.trainer(1, 0).point("fireworks").begin(0).steps(1, seconds=0.2)
    assert main(["validate", str(tmp_path / "events")]) == 0
    assert "flight windows: 1" in capsys.readouterr().out
