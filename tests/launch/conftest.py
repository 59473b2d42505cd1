"""A private ETT_HOME for each test, jobs to run in it, and proof that nothing of them is left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder

MODULES = Path(__file__).parent / "modules"
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(MODULES), prepend=os.pathsep)
    monkeypatch.delenv("ETT_LOCAL_SLOTS", raising=False)
    yield tmp_path
    terminal(["cancel", "--all"])
    wait_until(lambda: not processes_of(tmp_path), "processes are left")


def processes_of(home: Path) -> list[int]:
    """Every process that knows of this home: supervisors and ranks alike."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
            if not mine and process.environ().get("ETT_HOME") == str(home):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], object], complaint: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, complaint
        time.sleep(0.02)


class Jobs:
    """Submits `behave` jobs and waits for them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.launcher = LocalLauncher()
        self.run_folder = RunFolder.of("refresh", "run").create()

    def request(self, *steps: str, task: str = "train", attempt: int = 1, **fields: Any) -> JobRequest:
        key = JobKey(refresh=self.run_folder.refresh, run=self.run_folder.run, task=task, attempt=attempt)
        fields = {"grace_s": 3.0, "peer_grace_s": 1.0, **fields}
        return JobRequest(key=key, command=("behave", *steps), run_folder=self.run_folder, **fields)

    def submit(self, *steps: str, **fields: Any) -> JobHandle:
        return self.launcher.submit(self.request(*steps, **fields))

    def run(self, *steps: str, **fields: Any) -> JobStatus:
        return self.end(self.submit(*steps, **fields))

    def end(self, handle: JobHandle) -> JobStatus:
        self.until(lambda: self.launcher.describe(handle).terminal, f"{handle} does not end")
        return self.launcher.describe(handle)

    def state(self, handle: JobHandle, state: JobState) -> JobStatus:
        self.until(lambda: self.launcher.describe(handle).state is state, f"{handle} does not become {state}")
        return self.launcher.describe(handle)

    def until(self, condition: Callable[[], object], complaint: str) -> None:
        wait_until(condition, complaint)

    def supervisor_pid(self, handle: JobHandle) -> int:
        record = JobFolder.of(handle.id).status()
        assert record is not None
        return record.supervisor_pid

    def nothing_is_left(self) -> None:
        """The supervisor leaves right after it has told the end."""
        wait_until(lambda: not processes_of(self.home), "processes are left")

    def points(self) -> list[dict[str, Any]]:
        """The launcher's points that reached the run folder, by time."""
        found = []
        for path in self.run_folder.events_dir.glob("launcher-*/*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found += [line for line in lines if line["kind"] == "point"]
        return sorted(found, key=lambda point: point["wall_ns"])

    def point_names(self) -> list[str]:
        return [point["name"] for point in self.points()]


@pytest.fixture
def jobs(home: Path) -> Jobs:
    return Jobs(home)
