"""Whole training jobs whose ranks a standby forks: the same bits as cold ones, and restarts from one standby."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from saved_state import differing
from training_job import Job

from ett_reports.events import Cause
from ett_reports.flight_recorder import read_flight
from ett_reports.reader import read_log
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import LocalLauncher
from trainer.launch.warmth import standby_place

JobFactory = Callable[..., Job]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PATIENCE_S = 600.0
NOISY = {"model": {"factory": "noisy_model:noisy"}, "training": {"warmup_steps": 60, "batch_size": 32}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    yield
    terminal(["cancel", "--all"])


def submit(job: Job, attempt: int, standby_idle_s: float | None, *, ranks: int = 2) -> JobHandle:
    key = JobKey(refresh=job.folder.refresh, run=job.folder.run, task="train", attempt=attempt)
    return LocalLauncher().submit(
        JobRequest(
            key=key,
            command=("trainer",),
            run_folder=job.folder,
            replicas=ranks,
            devices=ranks,
            standby_idle_s=standby_idle_s,
        )
    )


def until(handle: JobHandle, what: str, found: Callable[[], Any]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not found():
        status = LocalLauncher().describe(handle)
        log = "\n".join(LocalLauncher().logs(handle, last=40))
        assert not status.terminal, f"ended before {what}: {status.message}\n{log}"
        assert time.monotonic() < give_up, f"no {what}:\n{log}"
        time.sleep(0.05)


def end(handle: JobHandle) -> JobStatus:
    give_up = time.monotonic() + PATIENCE_S
    while not (status := LocalLauncher().describe(handle)).terminal:
        assert time.monotonic() < give_up, "\n".join(LocalLauncher().logs(handle, last=40))
        time.sleep(0.05)
    return status


def starts(job: Job) -> list[str]:
    launched = [
        point
        for process in read_log(job.folder.events_dir).processes
        for point in process.points
        if point.name == "launched"
    ]
    return [str(point.attrs["start"]) for point in sorted(launched, key=lambda point: point.wall_ns or 0)]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_warm_job_has_the_bits_of_a_cold_one(new_job: JobFactory, ranks: int) -> None:
    """One rank has all cores, so that it counts whether warm threads add up as cold ones do."""
    sections = {**NOISY, "resources": {"ranks": ranks, "device": "cpu"}}
    jobs = [new_job(f"{start}-{ranks}", **sections) for start in ("cold", "warm")]
    for job, idle_s in zip(jobs, (None, 60.0), strict=True):
        handle = submit(job, 1, idle_s, ranks=ranks)
        status = end(handle)
        assert status.state is JobState.SUCCEEDED, "\n".join(LocalLauncher().logs(handle, last=40))
    cold, warm = jobs
    assert (starts(cold), starts(warm)) == (["cold"], ["warm"])
    assert cold.points("completed") == warm.points("completed") == [{"cursor": cold.planned}]
    assert differing(cold.folder.anchor_dir, warm.folder.anchor_dir) == []
    assert cold.quality("progressive") == warm.quality("progressive")
    assert cold.quality("holdout") == warm.quality("holdout")


def test_restarts_of_a_killed_job_come_from_one_standby(new_job: JobFactory) -> None:
    job = new_job("restarts", checkpoint={"interval_s": 0.3, "keep": 3})
    pids = set()
    for attempt in (1, 2):
        handle = submit(job, attempt, 120.0)
        flight = JobFolder.of(handle.id).events_dir / f"trainer-a{attempt}-r0" / "flight.bin"
        until(handle, "a step", lambda path=flight: (state := read_flight(path)) is not None and state.cursor)
        record = standby_place().record()
        assert record is not None
        pids.add(record.pid)
        os.kill(LocalLauncher().describe(handle).ranks[1].pid, signal.SIGKILL)
        status = end(handle)
        assert (status.state, status.cause) == (JobState.FAILED, Cause.INFRASTRUCTURE)
        assert status.ranks[1].exit_code == -signal.SIGKILL
    handle = submit(job, 3, 120.0)
    assert end(handle).state is JobState.SUCCEEDED, "\n".join(LocalLauncher().logs(handle, last=40))
    assert starts(job) == ["warm"] * 3
    assert len(pids) == 1
    assert job.cursors(attempt=3)[-1] == job.planned
