"""Hung attempts: whoever cannot show where it stands by itself is asked by the supervisor before it is ended."""

from __future__ import annotations

import os
import signal

import pytest

from ett_reports.events import Cause
from trainer.launch import JobState


def log_of(jobs, handle, rank: int) -> str:
    return "\n".join(line for line in jobs.launcher.logs(handle) if line.startswith(f"[{rank}]"))


def test_a_rank_that_says_it_hangs_makes_the_job_a_hang_and_its_peers_show_their_stacks(jobs) -> None:
    peer = ("1:stacks", "1:ignore_term", "1:hold_the_interpreter")
    status = jobs.end(handle := jobs.submit("0:sleep:0.5", "0:exit:70", *peer, replicas=2, devices=2))
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.HANG, 70)
    assert [point["attrs"]["cause"] for point in jobs.points()[3:]] == ["hang"] * 3
    assert "in hold_the_interpreter" in log_of(jobs, handle, 1)
    jobs.nothing_is_left()


def test_a_silent_job_shows_its_stacks_before_it_is_ended_also_a_stopped_rank(jobs) -> None:
    handle = jobs.submit("*:stacks", "*:say:up", "*:sleep:60", replicas=2, devices=2, hang_timeout_s=2.0)
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 4, "ranks do not start")
    os.kill(jobs.state(handle, JobState.RUNNING).ranks[1].pid, signal.SIGSTOP)
    status = jobs.end(handle)
    assert (status.state, status.cause) == (JobState.FAILED, Cause.HANG)
    assert "their logs end with their stacks" in status.message
    for rank in (0, 1):
        assert 'behave.py"' in log_of(jobs, handle, rank)
    jobs.nothing_is_left()


@pytest.mark.integration
def test_a_process_without_a_handler_is_not_asked(jobs) -> None:
    status = jobs.run("0:exit:70", "1:save_on_term:0", "1:sleep:60", replicas=2)
    assert [rank.exit_code for rank in status.ranks] == [70, 75]


def test_a_rank_that_waits_in_startup_for_a_preempted_peer_is_told_to_leave(jobs) -> None:
    status = jobs.run("0:exit:75", "1:save_on_term:0", "1:sleep:60", replicas=2, devices=2, grace_s=60.0)
    assert (status.state, status.cause) == (JobState.PREEMPTED, Cause.PREEMPTION)
    assert [rank.exit_code for rank in status.ranks] == [75, 75]


def test_a_rank_is_told_its_grace_time(jobs, tmp_path) -> None:
    jobs.run(f"*:environment:{tmp_path / 'seen'}", grace_s=12.5)
    assert '"ETT_GRACE_S": "12.5"' in (tmp_path / "seen.0").read_text()
