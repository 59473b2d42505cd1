"""Local jobs for real: their life, their ends and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from ett_reports.events import Cause
from trainer.launch import JobHandle, JobNotFoundError, JobState, LaunchError
from trainer.launch.job_folder import JobFolder


def test_a_job_from_submission_to_success(jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "not for jobs")
    seen = tmp_path / "seen"
    handle = jobs.submit(
        "*:say:hello $HOME $$", f"*:environment:{seen}", replicas=2, devices=2, env={"SPECIAL": "a${replica_id}$$b"}
    )
    status = jobs.end(handle)
    assert (status.state, status.exit_code, status.cause) == (JobState.SUCCEEDED, 0, None)
    assert [rank.exit_code for rank in status.ranks] == [0, 0]
    assert status.submitted_ns < status.allocated_ns < status.started_ns < status.ended_ns

    environments = [json.loads(Path(f"{seen}.{rank}").read_text()) for rank in (0, 1)]
    assert [e["RANK"] for e in environments] == [e["LOCAL_RANK"] for e in environments] == ["0", "1"]
    first, second = environments
    assert first["MASTER_ADDR"] == "127.0.0.1" and first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (first["WORLD_SIZE"], first["ETT_ATTEMPT"], first["ETT_TASK"]) == ("2", "1", "train")
    assert first["SPECIAL"] == "a${replica_id}$$b"
    assert first["ETT_RUN_FOLDER"] == jobs.run_folder.url
    assert first["ETT_ERROR_FILE"] != second["ETT_ERROR_FILE"]
    assert "AIRFLOW__CORE__FERNET_KEY" not in first
    assert first["cwd"].startswith(str(jobs.home / "local" / "jobs"))

    folder = JobFolder.of(handle.id).root
    assert (folder.stat().st_mode | (folder / "request.json").stat().st_mode) & 0o077 == 0

    assert jobs.point_names() == ["submitted", "allocated", "launched", "released"]
    assert all(point["attrs"]["attempt"] == 1 for point in jobs.points())
    assert jobs.points()[-1]["attrs"]["outcome"] == "completed"
    kept = jobs.run_folder.logs_dir / "train-a1"
    assert kept.joinpath("rank-1.log").read_text().splitlines() == ["hello $HOME $$", "hello $HOME $$ on stderr"]
    assert list(jobs.launcher.logs(handle, last=1)) == [f"[{rank}] hello $HOME $$ on stderr" for rank in (0, 1)]
    jobs.nothing_is_left()


@pytest.mark.parametrize(
    ("step", "state", "cause", "code"),
    [
        ("1:die:9", JobState.FAILED, Cause.INFRASTRUCTURE, -9),
        ("*:exit:75", JobState.PREEMPTED, Cause.PREEMPTION, 75),
    ],
)
def test_the_first_failing_rank_decides(jobs, step: str, state: JobState, cause: Cause, code: int) -> None:
    status = jobs.run(step, "*:sleep:60", replicas=2, devices=2)
    assert (status.state, status.cause, status.exit_code) == (state, cause, code)
    names = jobs.point_names()
    assert names == ["submitted", "allocated", "launched", "failure", "detected", "released"]
    assert [point["attrs"]["cause"] for point in jobs.points()[3:]] == [cause] * 3
    jobs.nothing_is_left()


def test_a_rank_killed_from_outside_ends_its_peer(jobs) -> None:
    handle = jobs.submit("0:ignore_term", "*:spawn_daemon:both", "*:sleep:60", replicas=2)
    running = jobs.state(handle, JobState.RUNNING)
    jobs.until(lambda: len(psutil.Process(jobs.supervisor_pid(handle)).children(recursive=True)) == 4, "no daemons")
    daemons = psutil.Process(jobs.supervisor_pid(handle)).children(recursive=True)
    time.sleep(0.2)
    os.kill(running.ranks[1].pid, signal.SIGKILL)
    status = jobs.end(handle)
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.INFRASTRUCTURE, -9)
    assert "rank 1 was killed by SIGKILL" in status.message
    assert [rank.exit_code for rank in status.ranks] == [-9, -9]
    assert not [process for process in daemons if process.is_running()]


def test_a_job_tells_why_it_failed(jobs) -> None:
    told = jobs.run("*:explain:column price is missing", "*:exit:65", task="check_schema")
    assert told.message == "rank 0 exited with 65: column price is missing"
    assert told.details == {"rank": 0}
    silent = jobs.run("*:say:boom", "*:exit:1", task="publish")
    assert silent.message == "rank 0 exited with 1: boom on stderr"


@pytest.mark.integration
def test_a_module_that_does_not_exist_is_the_application_s_fault(jobs) -> None:
    request = jobs.request("x", task="publish")
    object.__setattr__(request, "command", ("no_such_module",))
    status = jobs.end(jobs.launcher.submit(request))
    assert (status.state, status.cause) == (JobState.FAILED, Cause.APPLICATION)
    assert "no_such_module" in status.message


def test_cancel_gives_time_then_kills(jobs) -> None:
    handle = jobs.submit("0:ignore_term", "*:say:up", "*:sleep:60", replicas=2, devices=2, grace_s=0.5)
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    jobs.launcher.cancel(handle)
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.CANCELLED, Cause.CANCELLED)
    assert [rank.exit_code for rank in status.ranks] == [-9, -15]
    assert jobs.points()[-1]["attrs"]["cause"] == "cancelled"
    jobs.launcher.cancel(handle)
    assert jobs.launcher.describe(handle) == status


def test_preempt_lets_the_ranks_save(jobs) -> None:
    handle = jobs.submit("0:save_on_term:0", "1:save_on_term:0.7", "*:say:up", "*:sleep:60", replicas=2, devices=2)
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    jobs.launcher.preempt(handle)
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.PREEMPTED, Cause.PREEMPTION)
    assert [rank.exit_code for rank in status.ranks] == [75, 75]
    with pytest.raises(LaunchError, match="only a running job"):
        jobs.launcher.preempt(handle)


def test_silence_is_a_hang(jobs) -> None:
    handle = jobs.submit("*:beat:0.3", "*:sleep:60", replicas=2, devices=2, hang_timeout_s=0.8, peer_grace_s=0.5)
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.FAILED, Cause.HANG)
    failure, detected = jobs.points()[3:5]
    assert (failure["name"], detected["name"]) == ("failure", "detected")
    assert detected["wall_ns"] - failure["wall_ns"] >= 0.8e9


def test_logs_can_be_followed(jobs) -> None:
    handle = jobs.submit("*:say:early", "*:sleep:0.5", "0:say:late", replicas=2)
    lines = list(jobs.launcher.follow_logs(handle))
    assert sorted(lines) == sorted(
        [*(f"[{rank}] early{end}" for rank in (0, 1) for end in ("", " on stderr")), "[0] late", "[0] late on stderr"]
    )


def test_an_unknown_job_says_where_it_was_sought(jobs) -> None:
    with pytest.raises(JobNotFoundError, match=str(jobs.home)):
        jobs.launcher.describe(JobHandle("local", "nothing", jobs.run_folder.url))
    assert jobs.launcher.find(jobs.request("x").key) is None
