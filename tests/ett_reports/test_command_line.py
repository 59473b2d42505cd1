"""`python -m ett_reports`: run and validate, and exit code 2 with one line for wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ett_reports.__main__ import main
from ett_reports.commands import COMMANDS
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


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)], ids=lambda given: " ".join(given))
def test_help_is_printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse formats help texts: the percent sign of ETT% must be spelt for it."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and told.startswith("usage: python -m ett_reports") and "%%" not in told


def _not_json(folder: Path) -> Path:
    (folder / "events" / "trainer").mkdir(parents=True)
    (folder / "events" / "trainer" / "000001.jsonl").write_text("step 1 took 0.3 s\n")
    return folder


def _binary(folder: Path) -> Path:
    folder.mkdir()
    (folder / "000001.jsonl").write_bytes(bytes(range(256)))
    return folder


def _other_version(folder: Path) -> Path:
    Story(folder / "events").submit(1, 0)
    for file in folder.rglob("*.jsonl"):
        file.write_text(file.read_text().replace('"v":1', '"v":2'))
    return folder


def _no_events(folder: Path) -> Path:
    Story(folder / "events").launcher.recorder.close()
    return folder


def _no_lines(folder: Path) -> Path:
    folder.mkdir()
    (folder / "000001.jsonl").write_text("")
    return folder


def _empty_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _two_jobs(folder: Path) -> Path:
    for job in ("shop/monday", "shop/tuesday"):
        Story(folder / job.replace("/", "-"), job=job).submit(1, 0)
    return folder


@pytest.mark.parametrize("command", ["run", "validate", "watch", "interval", "whatif", "compare"])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_not_json, "not an event log: no line of it is a JSON object"),
        (_binary, "not an event log: no line of it is a JSON object"),
        (_other_version, "events of another schema version only; this program reads version 1"),
        (_no_events, "no attempt in this log: neither a trainer's events nor a launcher's 'submitted' point"),
        (_no_lines, "no process line"),
        (_empty_folder, "no event files (*.jsonl) in it: give a run folder or its events folder"),
        (_two_jobs, "events of 2 jobs (shop/monday, shop/tuesday): give the folder of one run"),
    ],
    ids=lambda made: made.__name__.strip("_") if callable(made) else "",
)
def test_wrong_log_is_one_clear_line_and_exit_code_2(
    command: str, make: Callable[[Path], Path], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = str(make(tmp_path / "given"))
    options = {"whatif": ["--shorten", "compile=0"], "compare": [given]}.get(command, [])
    if command == "validate" and make is _no_events:
        assert main([command, given]) == 0  # a whole log, in which nothing happened
        return
    assert main([command, given, *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("ett_reports: ") and told in printed.err and "Traceback" not in printed.err


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
