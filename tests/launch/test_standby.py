"""Ranks forked from a warm standby: told, ended and logged exactly as cold ones."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from ett_reports.events import Cause
from trainer.launch import InvalidRequestError, JobState, Resources
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.warmth import standby_place
from trainer.standby.place import Record

IDLE_S = 60.0


def standby() -> Record:
    record = standby_place().record()
    assert record is not None
    return record


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def starts(jobs) -> list[str]:
    """How the ranks of each attempt came to be."""
    launched = [point["attrs"] for point in jobs.points() if point["name"] == "launched"]
    return [attrs["start"] if attrs["why"] is None else f"{attrs['start']}: {attrs['why']}" for attrs in launched]


def keeper_of(jobs, rank_pid: int) -> psutil.Process:
    keeper = psutil.Process(rank_pid).parent()
    assert keeper is not None and keeper.pid != standby().pid
    return keeper


@pytest.mark.parametrize("idle_s", [None, IDLE_S])
def test_a_job_finds_the_same_world_warm_or_cold(jobs, tmp_path: Path, idle_s: float | None) -> None:
    seen = tmp_path / "seen"
    handle = jobs.submit(
        "*:say:hello $HOME $$",
        f"*:environment:{seen}",
        f"*:process:{seen}-process",
        replicas=2,
        devices=2,
        env={"SPECIAL": "a${replica_id}$$b"},
        standby_idle_s=idle_s,
    )
    status = jobs.end(handle)
    assert (status.state, status.exit_code, status.cause) == (JobState.SUCCEEDED, 0, None), status
    assert [rank.exit_code for rank in status.ranks] == [0, 0]
    assert starts(jobs) == ["cold: not asked for" if idle_s is None else "warm"]
    environments = [json.loads(Path(f"{seen}.{rank}").read_text()) for rank in (0, 1)]
    for rank, environment in enumerate(environments):
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["SPECIAL"] == "a${replica_id}$$b"
        assert environment["ETT_JOB_DIR"] == str(JobFolder.of(handle.id).root)
        assert environment["cwd"] == str(JobFolder.of(handle.id).work_dir)
        assert not [name for name in environment if "STANDBY" in name or name.startswith(("OPENBLAS", "JE_ARROW"))]
        process = json.loads(Path(f"{seen}-process.{rank}").read_text())
        assert process.pop("shown_environment") == {k: v for k, v in environment.items() if k != "cwd"}
        assert process.pop("pid") == process.pop("session") == status.ranks[rank].pid
        assert process == {
            "files": [0, 1, 2],
            "handlers": {"SIGINT": "default_int_handler", "SIGTERM": "0", "SIGPIPE": "1", "SIGCHLD": "0"},
            "blocked": [],
            "module": "__main__",
            "argv0": "behave.py",
            "path0": environment["cwd"],
            "root_handlers": 0,
            "threads": 1,
        }
    kept = jobs.run_folder.logs_dir / "train-a1"
    assert kept.joinpath("rank-1.log").read_text().splitlines() == ["hello $HOME $$", "hello $HOME $$ on stderr"]


@pytest.mark.parametrize(
    ("steps", "state", "cause", "codes"),
    [
        (("*:exit:0",), JobState.SUCCEEDED, None, [0, 0]),
        (("1:exit:65", "*:sleep:60"), JobState.FAILED, Cause.DATA, [-15, 65]),
        (("*:exit:75",), JobState.PREEMPTED, Cause.PREEMPTION, [75, 75]),
        pytest.param(
            ("1:exit:1", "*:sleep:60"), JobState.FAILED, Cause.APPLICATION, [-15, 1], marks=pytest.mark.integration
        ),
        pytest.param(
            ("1:exit:300", "*:sleep:60"), JobState.FAILED, Cause.APPLICATION, [-15, 44], marks=pytest.mark.integration
        ),
        (("1:die:11", "*:sleep:60"), JobState.FAILED, Cause.INFRASTRUCTURE, [-15, -11]),
        pytest.param(
            ("1:die:2", "*:sleep:60"), JobState.FAILED, Cause.INFRASTRUCTURE, [-15, -2], marks=pytest.mark.integration
        ),
        (("1:raise:boom", "*:sleep:60"), JobState.FAILED, Cause.APPLICATION, [-15, 1]),
        pytest.param(
            ("1:leave_with_text:boom", "*:sleep:60"),
            JobState.FAILED,
            Cause.APPLICATION,
            [-15, 1],
            marks=pytest.mark.integration,
        ),
    ],
)
def test_every_end_is_told_as_a_cold_one_s(
    jobs, steps: tuple[str, ...], state: JobState, cause: Cause | None, codes: list[int]
) -> None:
    told = []
    for attempt, idle_s in ((1, None), (2, IDLE_S)):
        status = jobs.run(*steps, attempt=attempt, replicas=2, devices=2, standby_idle_s=idle_s)
        message = re.sub(r"^rank \d ", "", status.message)  # which of two that end alike comes first is chance
        told.append((status.state, status.cause, [rank.exit_code for rank in status.ranks], message))
    assert told[0] == told[1]
    assert told[1][:3] == (state, cause, codes)
    assert starts(jobs) == ["cold: not asked for", "warm"]


def test_jobs_share_one_standby_until_it_is_idle(jobs) -> None:
    for attempt in (1, 2, 3):
        assert jobs.run("*:exit:0", attempt=attempt, devices=1, standby_idle_s=1.0).state is JobState.SUCCEEDED
        if attempt == 1:
            first = standby()
    assert standby() == first
    assert starts(jobs) == ["warm"] * 3
    jobs.until(lambda: not alive(first.pid), "an idle standby stays")
    assert "no job for 1 s" in standby_place().log_path.read_text()
    assert not standby_place().socket_path.exists()


def test_a_grace_time_is_a_warm_rank_s_too(jobs) -> None:
    handle = jobs.submit(
        *("0:save_on_term:0", "1:save_on_term:0.7", "*:say:up", "*:sleep:60"),
        replicas=2,
        devices=2,
        standby_idle_s=IDLE_S,
    )
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    jobs.launcher.preempt(handle)
    status = jobs.end(handle)
    assert (status.state, [rank.exit_code for rank in status.ranks]) == (JobState.PREEMPTED, [75, 75])


def test_a_cancelled_job_leaves_nothing_of_its_ranks(jobs) -> None:
    helpers = ("0:spawn_daemon:session", "1:spawn_daemon:both")
    handle = jobs.submit(
        "0:ignore_term", *helpers, "*:say:up", "*:sleep:60", replicas=2, devices=2, grace_s=0.5, standby_idle_s=IDLE_S
    )
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    keeper = keeper_of(jobs, jobs.launcher.describe(handle).ranks[0].pid)
    processes = keeper.children(recursive=True)
    assert len(processes) == 4
    jobs.launcher.cancel(handle)
    status = jobs.end(handle)
    assert (status.state, [rank.exit_code for rank in status.ranks]) == (JobState.CANCELLED, [-9, -15])
    assert not [process for process in processes if alive(process.pid)]
    jobs.until(lambda: not keeper.is_running(), "the keeper stays")
    assert alive(standby().pid)


def test_ranks_leave_with_a_killed_supervisor(jobs) -> None:
    handle = jobs.submit(
        *("0:spawn_daemon:both", "*:ignore_term", "*:say:up", "*:sleep:60"),
        replicas=2,
        devices=2,
        standby_idle_s=IDLE_S,
    )
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    processes = keeper_of(jobs, jobs.launcher.describe(handle).ranks[0].pid).children(recursive=True)
    assert len(processes) == 3
    os.kill(jobs.supervisor_pid(handle), signal.SIGKILL)
    jobs.until(lambda: not [process for process in processes if alive(process.pid)], "they stay")
    assert jobs.launcher.describe(handle).state is JobState.LOST
    assert jobs.run("*:exit:0", attempt=2, devices=2, standby_idle_s=IDLE_S).state is JobState.SUCCEEDED
    assert starts(jobs) == ["warm", "warm"]


def test_a_supervisor_and_a_keeper_killed_at_once_leave_no_rank(jobs) -> None:
    """The keeper cannot end what is left: the ranks die with it, their helpers are known by their environment."""
    handle = jobs.submit(
        "*:spawn_daemon:session", "*:say:up", "*:sleep:60", replicas=2, devices=2, standby_idle_s=IDLE_S
    )
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    keeper = keeper_of(jobs, jobs.launcher.describe(handle).ranks[0].pid)
    processes = keeper.children(recursive=True)
    os.kill(jobs.supervisor_pid(handle), signal.SIGSTOP)
    keeper.kill()
    os.kill(jobs.supervisor_pid(handle), signal.SIGKILL)
    ranks = {rank.pid for rank in jobs.launcher.describe(handle).ranks}
    jobs.until(lambda: not any(alive(pid) for pid in ranks), "ranks outlive their keeper")
    jobs.state(handle, JobState.LOST)
    jobs.launcher.cancel(handle)
    assert not [process for process in processes if alive(process.pid)]


def test_a_killed_keeper_is_an_infrastructure_failure(jobs) -> None:
    handle = jobs.submit("*:spawn_daemon:session", "*:sleep:60", replicas=2, devices=2, standby_idle_s=IDLE_S)
    ranks = jobs.state(handle, JobState.RUNNING).ranks
    keeper = keeper_of(jobs, ranks[0].pid)
    jobs.until(lambda: len(keeper.children(recursive=True)) == 4, "helpers do not start")
    time.sleep(0.1)
    processes = keeper.children(recursive=True)
    keeper.kill()
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.FAILED, Cause.INFRASTRUCTURE)
    assert [rank.exit_code for rank in status.ranks] == [-9, -9]
    assert not [process for process in processes if alive(process.pid)]
    assert jobs.run("*:exit:0", attempt=2, devices=1, standby_idle_s=IDLE_S).state is JobState.SUCCEEDED
    assert starts(jobs) == ["warm", "warm"]


def test_a_killed_standby_costs_a_running_job_nothing(jobs) -> None:
    handle = jobs.submit("*:sleep:1.5", "0:say:done", replicas=2, devices=2, standby_idle_s=IDLE_S)
    jobs.state(handle, JobState.RUNNING)
    first = standby()
    os.kill(first.pid, signal.SIGKILL)
    assert jobs.end(handle).state is JobState.SUCCEEDED
    assert standby_place().socket_path.exists()  # stale
    assert jobs.run("*:exit:0", attempt=2, devices=1, standby_idle_s=IDLE_S).state is JobState.SUCCEEDED
    assert starts(jobs) == ["warm", "warm"]
    assert standby().pid != first.pid


def test_silence_of_warm_ranks_is_a_hang(jobs) -> None:
    handle = jobs.submit(
        *("*:stacks:", "*:beat:0.3", "*:sleep:60"),
        replicas=2,
        devices=2,
        hang_timeout_s=0.8,
        peer_grace_s=0.5,
        standby_idle_s=IDLE_S,
    )
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.FAILED, Cause.HANG)
    assert [line for line in jobs.launcher.logs(handle) if "behave.py" in line]


def test_cancel_all_ends_the_standby(jobs, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.run("*:exit:0", standby_idle_s=IDLE_S)
    assert alive(standby().pid)
    assert terminal(["cancel", "--all"]) == 0
    assert "the warm standby: ended" in capsys.readouterr().out
    assert not alive(standby().pid)


def test_a_job_with_gpus_has_no_standby(jobs) -> None:
    with pytest.raises(InvalidRequestError, match="None with GPUs"):
        jobs.request("*:exit:0", standby_idle_s=IDLE_S, resources=Resources(gpus=1))
