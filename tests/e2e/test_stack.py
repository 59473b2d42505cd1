"""`make refresh`, `up` and `down` as a person uses them: one at a time, interrupted, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, SPECS, land, processes_of, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SPEC = SPECS / "tiny.yaml"


class Terminal:
    """Runs the stack's commands under a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "ETT_HOME": str(self.home),
            "ETT_SPECS": str(SPECS),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "ett_airflow.stack", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def training_runs(self) -> bool:
        records = self.home.glob("local/jobs/*-train-*/status.json")
        return any(json.loads(record.read_text())["status"]["state"] == "running" for record in records)

    def until_it_trains(self, refresh: subprocess.Popen[str]) -> None:
        """Raises with what `refresh` said if it ends before."""

        def trains_or_ended() -> bool:
            return self.training_runs() or refresh.poll() is not None

        wait_until(trains_or_ended, lambda: f"no training job: {self.alive()}")
        assert refresh.poll() is None, refresh.communicate()[0]

    def alive(self) -> list[str]:
        return processes_of(self.home)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.run("down")
    assert terminal.alive() == []


def test_an_interrupted_refresh_leaves_nothing_running_and_a_second_one_is_told_to_wait(terminal: Terminal) -> None:
    land(terminal.home, days=3)
    refresh = terminal.start("refresh", "--spec", str(SPEC))
    terminal.until_it_trains(refresh)
    status, output = terminal.run("refresh", "--spec", str(SPEC))
    assert status == 1
    assert "a refresh runs already" in output
    refresh.send_signal(signal.SIGINT)
    output, _ = refresh.communicate(timeout=120)
    assert refresh.returncode == 130, output
    wait_until(lambda: not terminal.alive(), lambda: str(terminal.alive()), patience_s=15)


@pytest.mark.chaos
def test_a_refresh_killed_without_warning_takes_airflow_and_its_jobs_along(terminal: Terminal) -> None:
    land(terminal.home, days=3)
    refresh = terminal.start("refresh", "--spec", str(SPEC))
    terminal.until_it_trains(refresh)
    refresh.kill()
    refresh.communicate()
    wait_until(lambda: not terminal.alive(), lambda: str(terminal.alive()), patience_s=90)


def test_up_stays_until_down(terminal: Terminal) -> None:
    status, output = terminal.run("up")
    assert status == 0, output
    assert "http://127.0.0.1:" in output
    assert "password" in output
    time.sleep(1)
    assert terminal.run("status")[0] == 0
    assert terminal.run("up")[0] == 0  # says where it is, starts no second one
    status, output = terminal.run("down")
    assert status == 0, output
    assert terminal.alive() == []
    assert terminal.run("status")[0] == 3


def test_a_broken_spec_is_told_before_anything_starts(terminal: Terminal, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(SPEC.read_text().replace("first_window_days", "first_window"))
    status, output = terminal.run("refresh", "--spec", str(broken))
    assert status == 1
    assert "broken.yaml:8: data.first_window" in output
    assert terminal.alive() == []
