"""Deaths at bad moments: submitters, supervisors and ranks, killed for real. One job existed, nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ett_reports.events import Cause
from trainer.launch import JobHandle, JobState, lost
from trainer.launch.job_folder import JobFolder, register

SUBMITTER = """
import os, signal, sys, time
from pathlib import Path
import trainer.launch.local as local
from trainer.launch import JobKey, JobRequest
from trainer.run_folder import RunFolder

if "die-before-start" in sys.argv:
    local._start_supervisor = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
if "together" in sys.argv:
    Path(f"{os.environ['ETT_HOME']}/ready-{os.getpid()}").touch()
    while not Path(f"{os.environ['ETT_HOME']}/go").exists():
        pass
key = JobKey(refresh="refresh", run="run", task="train")
steps = (f"*:mark:{os.environ['ETT_HOME']}/marks", f"*:sleep:{sys.argv[1]}")
request = JobRequest(
    key=key, command=("behave", *steps), run_folder=RunFolder.of("refresh", "run"), devices=1, grace_s=3.0
)
print(local.LocalLauncher().submit(request), flush=True)
if "stay" in sys.argv:
    time.sleep(60)
"""

OBSERVER = """
import sys
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import observe

print(observe(JobFolder.of(sys.argv[1])).state)
"""


def submitter(*arguments: str, **options: object) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ['PYTHONPATH']}"}
    return subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, *arguments], stdout=subprocess.PIPE, text=True, env=environment, **options
    )


def marks(jobs) -> list[str]:
    """One line for each rank that was ever started."""
    path = jobs.home / "marks"
    return path.read_text().splitlines() if path.exists() else []


def kill_supervisor(jobs, handle) -> None:
    os.kill(jobs.supervisor_pid(handle), signal.SIGKILL)
    jobs.until(lambda: not JobFolder.of(handle.id).supervised, "the supervisor does not die")


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_submitter_killed_between_registration_and_start(jobs) -> None:
    assert submitter("0", "die-before-start").wait() == -signal.SIGKILL
    key = jobs.request("x").key
    folder = JobFolder.of(key.name)
    assert folder.exists and folder.status() is None
    handle = jobs.launcher.find(key)
    assert jobs.launcher.describe(handle).state is JobState.REGISTERED
    assert not folder.supervised and marks(jobs) == [], "it would have the environment of whoever asks"
    with folder.lock():  # as its supervisor does before it has written a status
        in_between = subprocess.run([sys.executable, "-c", OBSERVER, folder.name], capture_output=True, text=True)
    assert in_between.stdout.strip() == JobState.PENDING, in_between.stderr
    assert jobs.submit("*:exit:9", devices=1) == handle
    assert jobs.end(handle).state is JobState.SUCCEEDED
    assert jobs.launcher.describe(handle).state is JobState.SUCCEEDED
    assert len(marks(jobs)) == 1
    assert jobs.point_names() == ["submitted", "allocated", "launched", "released"]


def _handle(jobs) -> JobHandle:
    return JobHandle("local", jobs.request("x").key.name, jobs.run_folder.url)


def test_concurrent_submitters_share_one_job(jobs) -> None:
    submitters = [submitter("1", "together") for _ in range(5)]
    jobs.until(lambda: len(list(jobs.home.glob("ready-*"))) == 5, "submitters do not start")
    (jobs.home / "go").touch()
    handles = {process.communicate()[0] for process in submitters}
    assert len(handles) == 1 and all(process.returncode == 0 for process in submitters)
    assert jobs.end(_handle(jobs)).state is JobState.SUCCEEDED
    assert len(marks(jobs)) == 1
    assert jobs.point_names().count("submitted") == 1


def test_a_job_survives_its_submitter_and_all_of_its_processes(jobs) -> None:
    process = submitter("1.0", "stay", start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    jobs.until(lambda: marks(jobs), "rank does not start")
    assert psutil.Process(process.pid).children(recursive=True) == []
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not jobs.launcher.describe(_handle(jobs)).terminal
    assert jobs.end(_handle(jobs)).state is JobState.SUCCEEDED
    assert len(marks(jobs)) == 1


def test_a_lost_job_is_reaped_before_its_next_attempt_runs(jobs, tmp_path: Path) -> None:
    first = jobs.submit("*:beat:60", replicas=2, devices=2)
    ranks = jobs.state(first, JobState.RUNNING).ranks
    jobs.until(lambda: list(jobs.run_folder.events_dir.glob("trainer-a1-r1/*")), "nothing is shipped")
    kill_supervisor(jobs, first)
    status = jobs.launcher.describe(first)
    assert (status.state, status.cause, status.ended_ns) == (JobState.LOST, Cause.INFRASTRUCTURE, None)
    assert all(alive(rank.pid) for rank in ranks)

    witness = f"*:environment:{tmp_path / 'second'}"
    second = jobs.submit(witness, attempt=2, replicas=2, devices=2)
    jobs.until(lambda: Path(f"{tmp_path / 'second'}.0").exists(), "second attempt does not start")
    assert not any(alive(rank.pid) for rank in ranks)
    assert jobs.end(second).state is JobState.SUCCEEDED
    reaped = jobs.launcher.describe(first)
    assert reaped.state is JobState.LOST and reaped.ended_ns is not None and "2 surviving" in reaped.message
    by_attempt = [
        [point["name"] for point in jobs.points() if point["attrs"]["attempt"] == attempt] for attempt in (1, 2)
    ]
    assert by_attempt[0] == ["submitted", "allocated", "launched", "failure", "detected", "released"]
    assert by_attempt[1] == ["submitted", "allocated", "launched", "released"]


def test_a_lost_job_is_told_of_once_although_who_ends_it_dies_over_it(jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = jobs.submit("*:sleep:60", devices=1)
    jobs.state(handle, JobState.RUNNING)
    kill_supervisor(jobs, handle)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(lost, "conclude", die)
        jobs.launcher.cancel(handle)
    assert jobs.launcher.describe(handle).ended_ns is None
    jobs.launcher.cancel(handle)
    assert jobs.launcher.describe(handle).ended_ns is not None
    assert jobs.point_names() == ["submitted", "allocated", "launched", "failure", "detected", "released"]


@pytest.mark.integration
def test_slots_of_a_lost_job_come_without_its_processes(jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_LOCAL_SLOTS", "1")
    lost = jobs.submit("*:sleep:60", devices=1)
    (rank,) = jobs.state(lost, JobState.RUNNING).ranks
    kill_supervisor(jobs, lost)
    other = jobs.submit("*:sleep:60", task="other", devices=1)
    jobs.state(other, JobState.RUNNING)
    assert not alive(rank.pid)
    assert jobs.launcher.describe(lost).ended_ns is not None


def test_cancelling_a_lost_job_leaves_nothing(jobs) -> None:
    helpers = ("0:spawn_daemon:session", "1:spawn_daemon:environment")
    handle = jobs.submit("*:ignore_term", *helpers, "*:sleep:60", replicas=2)
    supervisor = psutil.Process(jobs.supervisor_pid(handle))
    jobs.until(lambda: len(supervisor.children(recursive=True)) == 4, "helpers do not start")
    time.sleep(0.1)  # for the shells to have become helpers
    processes = supervisor.children(recursive=True)
    kill_supervisor(jobs, handle)
    jobs.launcher.cancel(handle)
    assert jobs.launcher.describe(handle).ended_ns is not None
    assert not [process for process in processes if alive(process.pid)]


@pytest.mark.integration
def test_a_supervisor_told_to_stop_lets_the_ranks_save(jobs) -> None:
    handle = jobs.submit("*:save_on_term:0", "*:say:up", "*:sleep:60", replicas=2)
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    os.kill(jobs.supervisor_pid(handle), signal.SIGTERM)
    assert jobs.end(handle).state is JobState.PREEMPTED


@pytest.mark.integration
def test_attempts_of_a_task_never_run_at_once(jobs) -> None:
    first = jobs.submit("*:sleep:60")
    jobs.state(first, JobState.RUNNING)
    second = jobs.submit("*:exit:0", attempt=2)
    jobs.until(lambda: first.id in jobs.launcher.describe(second).message, "second does not wait")
    jobs.launcher.cancel(first)
    assert jobs.end(second).started_ns > jobs.launcher.describe(first).ended_ns


@pytest.mark.integration
def test_a_new_run_of_a_deleted_name_does_not_see_the_old_outcome(jobs) -> None:
    handle = jobs.submit("*:exit:1")
    assert jobs.end(handle).state is JobState.FAILED
    shutil.rmtree(jobs.run_folder.root)
    assert jobs.launcher.find(jobs.request("x").key) is None
    assert jobs.run("*:exit:0").state is JobState.SUCCEEDED


def test_a_half_made_registration_is_nobody_s_job(jobs) -> None:
    def die(folder: JobFolder, submitted_ns: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        register(jobs.request("*:exit:0"), prepare=die)
    assert jobs.launcher.find(jobs.request("x").key) is None
    assert jobs.run("*:exit:0").state is JobState.SUCCEEDED


@pytest.mark.chaos
@pytest.mark.integration
def test_submitters_killed_at_any_moment(jobs) -> None:
    """Twenty lives; whenever the submitter dies, the next one makes it exactly one job."""
    chance = random.Random(7)
    for _ in range(20):
        process = submitter("0", "stay", start_new_session=True)
        time.sleep(chance.uniform(0.05, 0.6))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        handle = jobs.submit(f"*:mark:{jobs.home / 'marks'}", devices=1)
        assert jobs.end(handle).state is JobState.SUCCEEDED
        assert len(marks(jobs)) == 1
        jobs.until(lambda: jobs.point_names() == ["submitted", "allocated", "launched", "released"], "wrong points")
        jobs.nothing_is_left()
        (jobs.home / "marks").unlink()
        shutil.rmtree(jobs.home / "local" / "jobs")
        shutil.rmtree(jobs.run_folder.root)


@pytest.mark.chaos
@pytest.mark.integration
def test_supervisors_killed_at_any_moment(jobs) -> None:
    """Twenty attempts lose their supervisor; the twenty-first succeeds and no rank of the others is left."""
    chance = random.Random(11)
    for attempt in range(1, 21):
        handle = jobs.submit("*:sleep:60", attempt=attempt, devices=2, replicas=2)
        time.sleep(chance.uniform(0, 1.0))
        kill_supervisor(jobs, handle)
        assert jobs.launcher.describe(handle).state is JobState.LOST
    assert jobs.run("*:exit:0", attempt=21, devices=2, replicas=2).state is JobState.SUCCEEDED
    jobs.nothing_is_left()
    assert jobs.point_names().count("released") == 21
