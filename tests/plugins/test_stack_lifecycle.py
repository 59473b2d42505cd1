"""In which order the local Airflow and its jobs end, on a process that stands for Airflow's session."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from ett_airflow.stack import lifecycle, server
from ett_airflow.stack.server import Server, StackError, members, take_down
from ett_airflow.stack.settings import StackHome


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    return Server(stack=StackHome.default().create(), session=process.pid, port=1, started=time.time())


@pytest.fixture
def left_when_cancelled(running: Server, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What was left of Airflow each time that the jobs were cancelled."""
    seen: list[list[int]] = []
    for module in (server, lifecycle):
        monkeypatch.setattr(module, "cancel_jobs", lambda: seen.append(members(running.session)))
    return seen


def test_jobs_are_cancelled_once_airflow_is_gone(running: Server, left_when_cancelled: list[list[int]]) -> None:
    assert members(running.session)
    take_down(running)
    assert left_when_cancelled == [[]]


def test_an_airflow_that_does_not_come_up_costs_no_job(
    running: Server, left_when_cancelled: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of an earlier Airflow outlive it."""

    def never(*_: object, **__: object) -> None:
        raise StackError("it did not come up")

    monkeypatch.setattr(lifecycle, "start_server", lambda *_, **__: running)
    monkeypatch.setattr(lifecycle, "wait_healthy", never)
    with pytest.raises(StackError):
        lifecycle.up()
    assert members(running.session) == []
    assert left_when_cancelled == []
