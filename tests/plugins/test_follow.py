"""The trigger: fires when the wait is over, survives outages, and cancels for people only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ett_airflow import follow
from ett_airflow.follow import JobTrigger, Until, WatchTrigger
from ett_airflow.stamps import Stamps

from tests.plugins.conftest import wait_until
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, launcher_for
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder

ALIVE = (JobState.PENDING, JobState.RUNNING)


@pytest.fixture
def launcher(home: Path) -> LocalLauncher:
    return LocalLauncher()


def submit(launcher: LocalLauncher, *steps: str, **fields: Any) -> JobHandle:
    key = JobKey(refresh="tiny", run="run", task="train")
    folder = RunFolder.of("tiny", "run").create()
    return launcher.submit(
        JobRequest(key=key, command=("behave", *steps), run_folder=folder, devices=1, grace_s=1.0, **fields)
    )


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def first_event(trigger: WatchTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    return None


def watching(handle: JobHandle, until: Until = Until.ENDED) -> JobTrigger:
    return JobTrigger(handle=str(handle), until=until, poll_s=0.05, patience_s=0.2)


def test_it_is_rebuilt_from_what_it_serializes() -> None:
    trigger = JobTrigger(handle="local://job#/run", until=Until.HELD, poll_s=2.0)
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    assert (module, name) == ("ett_airflow.follow", "JobTrigger")
    assert JobTrigger(**arguments).serialize() == trigger.serialize()
    assert all(type(value) in (str, float, bool) for value in arguments.values())


def test_it_fires_at_the_end_with_the_whole_status(launcher: LocalLauncher) -> None:
    payload = run(first_event(watching(submit(launcher, "0:exit:3"))))
    status = JobStatus.from_dict(payload["status"])
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)


def test_launch_s_wait_ends_when_capacity_is_held(launcher: LocalLauncher) -> None:
    handle = submit(launcher, "0:beat:20")
    payload = run(first_event(watching(handle, Until.HELD)))
    assert payload["status"]["state"] == "running"
    assert not launcher.describe(handle).terminal


def test_a_job_that_is_not_known_here_is_told_at_once(home: Path) -> None:
    payload = run(first_event(watching(JobHandle("local", "nowhere", "/run"))))
    assert "known only on the machine" in payload["error"]


def test_a_scheduler_that_does_not_answer_is_waited_for_then_told(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = submit(launcher, "0:exit:0")
    wait_until(lambda: launcher.describe(handle).terminal, "the job does not end")
    answers = iter([OSError("away"), OSError("away"), None])
    describe = LocalLauncher.describe

    def sometimes(self: LocalLauncher, asked: JobHandle) -> JobStatus:
        error = next(answers, None)
        if error is not None:
            raise error
        return describe(self, asked)

    monkeypatch.setattr(LocalLauncher, "describe", sometimes)
    assert run(first_event(watching(handle)))["status"]["state"] == "succeeded"
    answers = iter([OSError("away")] * 100)
    assert "no answer" in run(first_event(watching(handle)))["error"]


async def killed(trigger: JobTrigger, how: str) -> None:
    """What the triggerer does: cancels the coroutine, and calls `on_kill` only when a person acted."""
    task = asyncio.create_task(first_event(trigger))
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if how == "by a person":
        await trigger.on_kill()
    await trigger.cleanup()


def test_a_triggerer_that_stops_leaves_the_job_alone(launcher: LocalLauncher) -> None:
    handle = submit(launcher, "0:beat:20")
    run(killed(watching(handle), "by a restart"))
    assert launcher.describe(handle).state in ALIVE


def test_a_person_who_clears_the_task_cancels_the_job(launcher: LocalLauncher) -> None:
    handle = submit(launcher, "0:beat:20")
    run(killed(watching(handle), "by a person"))
    wait_until(lambda: launcher.describe(handle).state is JobState.CANCELLED, "the job is not cancelled")


@pytest.mark.parametrize(("state", "cancelled"), [("deferred", False), ("failed", True), (None, True)])
def test_a_trigger_handed_to_another_triggerer_is_no_person_s_act(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, state: str | None, cancelled: bool
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = {"run": {"train": state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: states))
    handle = submit(launcher, "0:beat:20")
    trigger = watching(handle)
    trigger._task_instance = waiting_try()
    run(killed(trigger, "by a person"))
    if cancelled:
        wait_until(lambda: launcher.describe(handle).terminal, "the job is not cancelled")
    else:
        assert launcher_for("local").describe(handle).state in ALIVE


def waiting_try() -> SimpleNamespace:
    return SimpleNamespace(dag_id="tiny", task_id="train", run_id="run", map_index=-1, try_number=1)


def test_a_cleared_task_whose_next_try_waits_already_was_cleared_all_the_same(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def slow_answer(**_: object) -> dict[str, dict[str, str]]:
        with Stamps(RunFolder.of("tiny", "run"), task="train", try_number=2):
            return {"run": {"train": "deferred"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(slow_answer))
    handle = submit(launcher, "0:beat:20")
    trigger = watching(handle)
    trigger._task_instance = waiting_try()
    run(killed(trigger, "by a person"))
    wait_until(lambda: launcher.describe(handle).terminal, "the job is not cancelled")


def test_an_airflow_that_does_not_answer_does_not_save_a_job_from_a_person(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(follow, "ANSWER_S", 0.1)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: time.sleep(1)))
    handle = submit(launcher, "0:beat:20")
    trigger = watching(handle)
    trigger._task_instance = waiting_try()
    run(killed(trigger, "by a person"))
    wait_until(lambda: launcher.describe(handle).terminal, "the job is not cancelled")


def test_watching_alone_never_cancels(launcher: LocalLauncher) -> None:
    handle = submit(launcher, "0:beat:20")
    run(WatchTrigger(handle=str(handle), until=Until.ENDED).on_kill())
    assert launcher.describe(handle).state in ALIVE


def test_no_deferral_is_shorter_than_airflow_takes_to_see_that_the_task_s_process_has_ended() -> None:
    from airflow.configuration import conf

    assert conf.getint("workers", "min_heartbeat_interval") + 1 < follow.SHORTEST_S
