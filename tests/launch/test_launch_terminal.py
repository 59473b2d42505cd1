"""The command line, and the price of importing the package."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from trainer.launch import JobState
from trainer.launch.__main__ import main


def test_people_can_list_look_and_end(jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == "no jobs\n"
    failed = jobs.submit("*:say:boom", "*:explain:a \x1b[31mred\x1b[0m column", "*:exit:65", task="check_schema")
    jobs.end(failed)
    running = jobs.submit("*:save_on_term:0", "*:say:up", "*:sleep:60")
    jobs.until(lambda: len(list(jobs.launcher.logs(running))) == 2, "rank does not start")

    assert main(["list"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "STATE", "SUBMITTED", "RAN", "CAUSE", "MESSAGE"]
    assert failed.id in first and "failed" in first and "data" in first and "\x1b" not in first
    assert "running" in second

    assert main(["describe", "check-schema"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 65
    assert main(["logs", "-n", "1", "check-schema"]) == 0
    assert capsys.readouterr().out == "[0] boom on stderr\n"
    assert main(["preempt", "train"]) == 0
    assert jobs.end(running).state is JobState.PREEMPTED


def test_cancel_all_waits_for_the_end(jobs, capsys: pytest.CaptureFixture[str]) -> None:
    handles = [jobs.submit("*:sleep:60", task=task) for task in ("one", "two")]
    assert main(["cancel", "--all"]) == 0
    assert [jobs.launcher.describe(handle).state for handle in handles] == [JobState.CANCELLED] * 2
    assert main(["cancel", "--all"]) == 0
    assert "nothing to cancel" in capsys.readouterr().out


def test_wrong_names_are_told(jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "nothing"]) == 1
    assert "must name one job" in capsys.readouterr().err
    assert main(["cancel"]) == 2


def test_importing_pulls_nothing_heavy() -> None:
    """DAG files and triggers import this."""
    script = (
        "import sys, trainer.launch, trainer.launch.local; "
        "print([name for name in ('torch', 'torchx', 'airflow', 'psutil', 'pydantic') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
