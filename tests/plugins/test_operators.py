"""What operators make of real jobs: one copy, re-attached, each end judged once, each kind of end its own answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from ett_airflow import job_operator
from ett_airflow.follow import JobTrigger
from ett_airflow.job_operator import JobFailedError
from ett_airflow.operators import CheckSchemaOperator, LaunchOperator, PublishOperator, TrainOperator, airflow_run
from ett_airflow.resolution import resolve

from ett_reports.reader import read_log
from tests.plugins.conftest import SPEC_PATH, context_of, wait_until
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, newest_attempt
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder
from trainer.spec import load_spec, with_overrides

MODULES = Path(__file__).parent / "modules"


class Steps:
    """Mixed into an operator: its job is `tiny_job` with these steps."""

    steps: tuple[str, ...] = ()

    def request(self, run: Any, key: JobKey) -> JobRequest:
        return JobRequest(
            key=key, command=("tiny_job", *self.steps), run_folder=run.folder, devices=1, grace_s=1.0, hang_timeout_s=60
        )


class Launch(Steps, LaunchOperator):
    pass


class Train(Steps, TrainOperator):
    pass


class Publish(Steps, PublishOperator):
    pass


@pytest.fixture(autouse=True)
def no_moments(outside_airflow: None, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators defer at once, so that each test sees both halves."""
    monkeypatch.setattr(job_operator, "MOMENTS_S", 0.0)
    monkeypatch.setenv("PYTHONPATH", f"{MODULES}:{os.environ['PYTHONPATH']}")


@pytest.fixture
def folder(home: Path) -> RunFolder:
    """A run that is resolved, as after check_schema."""
    resolve(load_spec(SPEC_PATH), airflow_run(context_of()))
    return RunFolder.of("tiny", "by-hand")


def operator(kind: type, *steps: str) -> Any:
    built = kind(task_id=kind.__name__.lower())
    built.steps = steps
    return built


def newest(folder: RunFolder, task: str = "train") -> tuple[JobHandle, JobStatus]:
    launcher = LocalLauncher()
    handle = newest_attempt(launcher, JobKey(refresh="tiny", run=folder.run, task=task))
    assert handle is not None
    return handle, launcher.describe(handle)


def deferred(task: Any, **context: Any) -> TaskDeferred:
    """The first half of a try, up to its deferral."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context=context_of(**context))
    assert isinstance(caught.value.trigger, JobTrigger)
    return caught.value


def ended(folder: RunFolder, task: str = "train") -> JobStatus:
    wait_until(lambda: newest(folder, task)[1].terminal, "the job does not end")
    return newest(folder, task)[1]


def resumed(task: Any, deferral: TaskDeferred, status: JobStatus, **context: Any) -> Any:
    """The second half: what the trigger saw is handed over."""
    return task.resume(context_of(**context), event={"status": status.to_dict()}, **deferral.kwargs)


def try_once(task: Any, folder: RunFolder, job: str = "train", **context: Any) -> Any:
    """A whole try, its job followed to its end."""
    deferral = deferred(task, **context)
    return resumed(task, deferral, ended(folder, job), **context)


def stamps(folder: RunFolder, task: str) -> list[str]:
    points = [
        (process.pairs[0][0] - process.pairs[0][1] + point.mono_ns if point.wall_ns is None else point.wall_ns, point)
        for process in read_log(folder.events_dir).processes
        for point in process.points
        if point.attrs.get("task") == task
    ]
    return [point.name for _, point in sorted(points, key=lambda each: each[0])]


def test_a_try_is_submit_defer_resume_end_and_stamps_each(folder: RunFolder) -> None:
    handle = try_once(operator(Publish, "1:0:0"), folder, "publish")
    assert handle == str(newest(folder, "publish")[0])
    assert stamps(folder, "publish") == ["task_code_start", "task_submit", "task_defer", "task_resume", "task_end"]


def test_a_try_that_finds_its_job_alive_re_attaches(folder: RunFolder) -> None:
    first = deferred(operator(Train, "1:0:wait"))
    second = deferred(operator(Train, "1:0:wait"), try_number=2)
    assert second.kwargs["handle"] == first.kwargs["handle"]
    assert newest(folder)[1].attempt == 1


def test_a_try_killed_before_its_submission_was_recorded_finds_the_job_by_name(folder: RunFolder) -> None:
    task = operator(Train, "1:0:wait")
    LocalLauncher().submit(
        JobRequest(
            key=JobKey(refresh="tiny", run=folder.run, task="train"),
            command=("tiny_job", "1:0:wait"),
            run_folder=folder,
        )
    )
    deferral = deferred(task, try_number=2)
    assert deferral.kwargs["own"] is False
    assert newest(folder)[1].attempt == 1


def test_a_job_that_ended_while_nobody_looked_is_judged_by_the_next_try(folder: RunFolder) -> None:
    deferred(operator(Train, "1:100:0"))
    ended(folder)
    assert operator(Train).execute(context=context_of(try_number=2)) == str(newest(folder)[0])


def test_a_failed_attempt_fails_the_try_and_the_next_try_submits_the_next_attempt(folder: RunFolder) -> None:
    steps = ("1:50:1", "2:100:0")
    with pytest.raises(JobFailedError, match="attempt 1 failed"):
        try_once(operator(Train, *steps), folder)
    assert try_once(operator(Train, *steps), folder, try_number=2)
    assert newest(folder)[1].attempt == 2


def test_each_end_costs_one_try_also_when_launch_and_train_share_the_job(folder: RunFolder) -> None:
    steps = ("1:50:1", "2:100:0")
    deferral = deferred(operator(Launch, *steps))
    assert resumed(operator(Launch, *steps), deferral, ended(folder))  # it held its capacity: launch has done its part
    with pytest.raises(JobFailedError):
        operator(Train, *steps).execute(context=context_of())
    assert try_once(operator(Train, *steps), folder, try_number=2)
    assert newest(folder)[1].attempt == 2


def test_bad_data_is_not_retried_and_is_named(folder: RunFolder) -> None:
    with pytest.raises(AirflowFailException, match=r"part-0\.parquet: column visits: missing"):
        try_once(operator(Publish, "1:0:65"), folder, "publish")


def test_bad_data_found_in_training_is_not_retried_either(folder: RunFolder) -> None:
    with pytest.raises(AirflowFailException, match="visits"):
        try_once(operator(Train, "1:0:65"), folder)


def test_preemptions_are_resubmitted_inside_the_try(folder: RunFolder) -> None:
    steps = ("1:50:75", "2:100:0")
    task = operator(Train, *steps)
    first = deferred(task)
    with pytest.raises(TaskDeferred) as again:
        resumed(task, first, ended(folder))
    assert again.value.kwargs["handle"] != first.kwargs["handle"]
    assert resumed(task, again.value, ended(folder))
    assert newest(folder)[1].attempt == 2


def test_preemptions_have_a_budget_of_their_own(folder: RunFolder) -> None:
    task = operator(Train, "1:10:75", "2:20:75", "3:30:75")
    deferral = deferred(task)
    for _ in range(2):  # retries.preemptions in the spec
        with pytest.raises(TaskDeferred) as again:
            resumed(task, deferral, ended(folder))
        deferral = again.value
    with pytest.raises(AirflowFailException, match=r"preempted 3 times, retries\.preemptions allows 2"):
        resumed(task, deferral, ended(folder))


def test_attempts_that_move_the_cursor_are_no_crash_loop(folder: RunFolder) -> None:
    steps = ("1:10:1", "2:20:1", "3:30:1", "4:40:1")
    for number in range(1, 5):
        with pytest.raises(JobFailedError):
            try_once(operator(Train, *steps), folder, try_number=number)


def test_attempts_that_do_not_move_the_cursor_are_held_with_a_clear_message(folder: RunFolder) -> None:
    steps = ("1:10:1", "2:10:1", "3:0:1", "4:5:1")
    for number in range(1, 4):
        with pytest.raises(JobFailedError):
            try_once(operator(Train, *steps), folder, try_number=number)
    with pytest.raises(AirflowFailException, match="crash loop: the last 3 attempts ended without moving the cursor"):
        try_once(operator(Train, *steps), folder, try_number=4)


def test_a_clear_cancels_the_job_and_its_try_submits_the_next_attempt(folder: RunFolder) -> None:
    steps = ("1:50:wait", "2:100:0")
    handle = JobHandle.parse(deferred(operator(Train, *steps)).kwargs["handle"])
    found = deferred(operator(Train, *steps), try_number=2)  # the clear's own try is quicker than the cancellation
    LocalLauncher().cancel(handle)
    assert ended(folder).state is JobState.CANCELLED
    with pytest.raises(TaskDeferred) as again:
        resumed(operator(Train, *steps), found, newest(folder)[1], try_number=2)
    assert resumed(operator(Train, *steps), again.value, ended(folder), try_number=2)
    assert newest(folder)[1].attempt == 2


def test_a_job_that_somebody_cancels_from_outside_is_not_started_again(folder: RunFolder) -> None:
    task = operator(Train, "1:50:wait")
    deferral = deferred(task)
    LocalLauncher().cancel(JobHandle.parse(deferral.kwargs["handle"]))
    with pytest.raises(AirflowFailException, match="cancelled"):
        resumed(task, deferral, ended(folder))


def test_killing_the_task_s_own_process_by_hand_cancels_the_job(folder: RunFolder) -> None:
    task = operator(Train, "1:50:wait")
    deferred(task)
    task.on_kill()
    assert ended(folder).state is JobState.CANCELLED


def test_a_completed_job_stays_completed_when_train_is_cleared(folder: RunFolder) -> None:
    try_once(operator(Train, "1:100:0"), folder)
    operator(Train, "2:0:1").execute(context=context_of(try_number=2))
    assert newest(folder)[1].attempt == 1


def test_a_cleared_publish_runs_again(folder: RunFolder) -> None:
    try_once(operator(Publish, "*:0:0"), folder, "publish")
    try_once(operator(Publish, "*:0:0"), folder, "publish", try_number=2)
    assert newest(folder, "publish")[1].attempt == 2


def test_the_plan_is_fixed_once_training_has_begun(folder: RunFolder) -> None:
    try_once(operator(Train, "1:100:0"), folder)
    check = CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH))
    assert check.execute(context=context_of(try_number=2)) is None


def test_an_error_of_the_trigger_is_retried(folder: RunFolder) -> None:
    task = operator(Train, "1:0:wait")
    deferral = deferred(task)
    with pytest.raises(Exception, match="no answer") as caught:
        task.resume(context_of(), event={"error": "no answer for 120 s"}, **deferral.kwargs)
    assert not isinstance(caught.value, AirflowFailException)


def test_a_run_that_cannot_be_resolved_fails_for_good_before_any_job(home: Path) -> None:
    check = CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH))
    with pytest.raises(AirflowFailException, match="window_end 2026-11-20 without window_start"):
        check.execute(context=context_of(params={"window_end": "2026-11-20"}))
    assert not list(home.glob("local/jobs/*"))


def test_overrides_cannot_reach_the_model_factory() -> None:
    from trainer.spec import SpecError

    with pytest.raises(SpecError, match=r"model\.factory"):
        with_overrides(load_spec(SPEC_PATH), {"model": {"factory": "os:system"}})
