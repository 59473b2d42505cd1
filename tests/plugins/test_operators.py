"""What operators make of real jobs: one copy, re-attached, each end judged once, each kind of end its own answer."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DownstreamTasksSkipped, TaskDeferred
from ett_airflow import chain_lock, job_operator, operators
from ett_airflow.chain_lock import ChainLock, Holder
from ett_airflow.descendants import why_stale
from ett_airflow.follow import JobTrigger
from ett_airflow.job_log import JobLog
from ett_airflow.job_operator import JobFailedError
from ett_airflow.operators import (
    CheckSchemaOperator,
    LaunchOperator,
    PublishOperator,
    TrainOperator,
    airflow_run,
    snapshot_asset,
)
from ett_airflow.partitions import LANDING_MARKER
from ett_airflow.resolution import resolve
from ett_airflow.waiting import LandingTrigger, TurnTrigger
from ett_airflow.window import NothingToTrainError

from ett_reports.reader import read_log
from tests.plugins.conftest import SPEC_PATH, at_three, context_of, wait_until
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, newest_attempt
from trainer.launch.job_folder import register
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder, data_root, registry_root
from trainer.spec import RunInfo, WarmStart, Window, dump_run_spec, load_run_spec, load_spec, with_overrides

MODULES = Path(__file__).parent / "modules"


class Steps:
    """Mixed into an operator: its job is `tiny_job` with these steps."""

    steps: tuple[str, ...] = ()

    def request(self, run: Any, key: JobKey) -> JobRequest:
        return JobRequest(
            key=key, command=("tiny_job", *self.steps), run_folder=run.folder, devices=1, grace_s=1.0, hang_timeout_s=60
        )


class CheckSchema(Steps, CheckSchemaOperator):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "task_id": "check_schema", "spec_path": str(SPEC_PATH)})


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
    monkeypatch.setattr(chain_lock, "runs_in_airflow", lambda dag_id, run_id: False)
    monkeypatch.setenv("PYTHONPATH", f"{MODULES}:{os.environ['PYTHONPATH']}")


@pytest.fixture
def folder(home: Path) -> RunFolder:
    """A run of the two days to 28 November that is resolved, as after check_schema."""
    params = {"window_start": "2026-11-27", "window_end": "2026-11-29"}
    resolve(load_spec(SPEC_PATH), airflow_run(context_of(params=params)))
    return RunFolder.of("tiny", "by-hand")


def land(folder: RunFolder, closed: str | None = None) -> None:
    """The days of the run's window."""
    window = load_run_spec(folder.spec_path).run.window
    for day in (window.start, window.end - timedelta(days=1)):
        marker = data_root("tiny") / f"day={day}" / LANDING_MARKER
        marker.parent.mkdir(parents=True)
        marker.write_text(json.dumps({"closed": closed}))


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


def test_a_short_job_is_waited_for_without_a_deferral(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deferral costs two seconds and more; training, which takes long, is deferred after the first moment."""
    monkeypatch.setattr(job_operator, "MOMENTS_S", 0.01)
    monkeypatch.setattr(Publish, "moments", 100 * 60)
    publish = operator(Publish, "*:1:1")
    with pytest.raises(JobFailedError, match="publish: attempt 1 failed"):
        publish.execute(context=context_of())
    deferred(operator(Train, "*:1:0"))
    assert PublishOperator.moments == CheckSchemaOperator.moments > TrainOperator.moments


def stamps(folder: RunFolder, task: str) -> list[str]:
    points = [
        (process.pairs[0][0] - process.pairs[0][1] + point.mono_ns if point.wall_ns is None else point.wall_ns, point)
        for process in read_log(folder.events_dir).processes
        for point in process.points
        if point.attrs.get("task") == task
    ]
    return [point.name for _, point in sorted(points, key=lambda each: each[0])]


def registered(folder: RunFolder, *, live: bool = True) -> None:
    """What the publish job leaves in the registry."""
    version = registry_root() / folder.refresh / "versions" / folder.run
    version.mkdir(parents=True)
    (version / "manifest.json").write_text("{}")
    if live:
        record = registry_root() / folder.refresh / "live" / "1.json"
        record.parent.mkdir()
        record.write_text(json.dumps({"snapshot": folder.run, "window": ["2026-11-27", "2026-11-29"]}))


def test_a_try_is_submit_defer_resume_end_and_stamps_each(folder: RunFolder) -> None:
    registered(folder)
    handle = try_once(operator(Publish, "1:0:0"), folder, "publish")
    assert handle == str(newest(folder, "publish")[0])
    assert stamps(folder, "publish") == ["task_code_start", "task_submit", "task_defer", "task_resume", "task_end"]


def test_a_try_that_finds_its_job_alive_re_attaches(folder: RunFolder) -> None:
    first = deferred(operator(Train, "1:0:wait"))
    second = deferred(operator(Train, "1:0:wait"), try_number=2)
    assert second.kwargs["handle"] == first.kwargs["handle"]
    assert newest(folder)[1].attempt == 1


def test_a_try_killed_before_its_submission_was_recorded_finds_the_job_by_name(folder: RunFolder) -> None:
    LocalLauncher().submit(training(folder))
    deferral = deferred(operator(Train, "1:0:wait"), try_number=2)
    assert deferral.kwargs["own"] is False
    assert newest(folder)[1].attempt == 1


def training(folder: RunFolder) -> JobRequest:
    """What a try submits for the first attempt."""
    key = JobKey(refresh="tiny", run=folder.run, task="train")
    return JobRequest(key=key, command=("tiny_job", "1:0:wait"), run_folder=folder)


def test_a_try_killed_before_it_started_what_it_registered_leaves_the_start_to_the_next_try(folder: RunFolder) -> None:
    """Whoever else looks at the job, an alert or the API server, would start it with an environment that is not its."""
    register(training(folder), prepare=lambda job, submitted_ns: None)
    assert newest(folder)[1].state is JobState.REGISTERED
    deferral = deferred(operator(Train, "1:0:wait"), try_number=2)
    assert deferral.kwargs["own"] is True
    wait_until(lambda: newest(folder)[1].state is JobState.RUNNING, "the job is not started")
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


@pytest.mark.parametrize("attempts", ["*:none:1", "*:0:1"])
def test_attempts_that_die_in_startup_are_a_crash_loop(folder: RunFolder, attempts: str) -> None:
    for number in range(1, 3):
        with pytest.raises(JobFailedError):
            try_once(operator(Train, attempts), folder, try_number=number)
    with pytest.raises(AirflowFailException, match="crash loop: the last 3 attempts"):
        try_once(operator(Train, attempts), folder, try_number=3)


def test_preemptions_without_progress_are_no_crash_loop(folder: RunFolder) -> None:
    steps = ("1:10:1", "2:5:75", "3:5:75", "4:5:1", "5:10:1")
    for number in (1, 2):
        task = operator(Train, *steps)
        deferral = deferred(task, try_number=number)
        while (status := ended(folder)).state is JobState.PREEMPTED:
            with pytest.raises(TaskDeferred) as again:
                resumed(task, deferral, status, try_number=number)
            deferral = again.value
        with pytest.raises(JobFailedError):  # the first has moved the cursor, the second one not
            resumed(task, deferral, status, try_number=number)


def test_what_a_preempted_attempt_has_trained_is_progress(folder: RunFolder) -> None:
    steps = ("1:0:1", "2:0:1", "3:50:75", "4:50:1")
    for number in (1, 2):
        with pytest.raises(JobFailedError):
            try_once(operator(Train, *steps), folder, try_number=number)
    task = operator(Train, *steps)
    with pytest.raises(TaskDeferred) as again:
        try_once(task, folder, try_number=3)
    with pytest.raises(JobFailedError):  # not the third in a row without progress
        resumed(task, again.value, ended(folder), try_number=3)


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
    registered(folder)
    try_once(operator(Publish, "*:0:0"), folder, "publish")
    try_once(operator(Publish, "*:0:0"), folder, "publish", try_number=2)
    assert newest(folder, "publish")[1].attempt == 2


def test_the_plan_is_fixed_once_training_has_begun(folder: RunFolder) -> None:
    deferred(operator(Train, "1:50:wait"))
    check = CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH))
    assert check.execute(context=context_of(try_number=2)) is None


def test_a_completed_day_that_is_cleared_is_trained_again_beside_what_it_left(folder: RunFolder) -> None:
    land(folder)
    try_once(operator(Train, "1:100:0"), folder)
    deferred(operator(CheckSchema, "*:0:0"), try_number=2)
    again = RunFolder.of("tiny", "by-hand.again2")
    first, second = (load_run_spec(each.spec_path).run for each in (folder, again))
    assert (second.run, second.window) == ("by-hand.again2", first.window)
    assert second.warm_start is None, "the day itself is no start for the day"
    assert try_once(operator(Train, "1:100:0"), again, try_number=2)
    assert [newest(each)[1].attempt for each in (folder, again)] == [1, 1]
    deferred(operator(CheckSchema, "*:0:0"), try_number=3)  # cleared again: once more, and only once
    deferred(operator(CheckSchema, "*:0:0"), try_number=4)
    assert sorted(path.name for path in folder.root.parent.glob("*.again*")) == ["by-hand.again2", "by-hand.again3"]


def test_training_an_old_day_again_marks_what_was_built_on_it_and_says_so(folder: RunFolder) -> None:
    try_once(operator(Train, "1:100:0"), folder)
    start = {"run": folder.run, "anchor": str(folder.anchor_dir)}
    run = load_run_spec(folder.spec_path)
    window = Window(start=run.run.window.end, end=run.run.window.end + timedelta(days=1))
    later = RunFolder.of("tiny", "later").create()
    info = RunInfo(run="later", window=window, warm_start=WarmStart.model_validate(start))
    dump_run_spec(run.model_copy(update={"run": info}), later.spec_path)
    land(folder)
    deferred(operator(CheckSchema, "*:0:0"), try_number=2)
    task = operator(Train, "1:100:0")
    deferral = deferred(task, try_number=2)
    context = context_of(try_number=2)
    status = ended(RunFolder.of("tiny", "by-hand.again2"))
    task.resume(context, event={"status": status.to_dict()}, **deferral.kwargs)
    assert context["ti"].pushed == {"stale_descendants": ["later"]}
    assert why_stale(later) == "built on by-hand, whose days run by-hand.again2 has trained again"
    assert why_stale(folder) is None


def test_a_second_run_waits_until_the_first_has_trained(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    running = {"by-hand", "second"}
    monkeypatch.setattr(chain_lock, "runs_in_airflow", lambda dag_id, run_id: run_id in running)
    marker = data_root("tiny") / "day=2026-11-29" / LANDING_MARKER
    marker.parent.mkdir(parents=True)
    marker.write_text("{}")
    first = deferred(operator(Train, "1:100:0"))
    second = operator(CheckSchema, "*:0:0")
    with pytest.raises(TaskDeferred) as waits:
        second.execute(context=context_of("second"))
    assert isinstance(waits.value.trigger, TurnTrigger)
    assert not RunFolder.of("tiny", "second").spec_path.exists(), "decided before the first run's anchor is there"
    assert resumed(operator(Train), first, ended(folder))
    with pytest.raises(TaskDeferred) as goes_on:
        getattr(second, waits.value.method_name)(context_of("second"), event={})
    assert isinstance(goes_on.value.trigger, JobTrigger)
    start = load_run_spec(RunFolder.of("tiny", "second").spec_path).run.warm_start
    assert start is not None
    assert start.run == folder.run


def test_a_run_that_was_cleared_late_waits_for_its_turn(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_lock, "runs_in_airflow", lambda dag_id, run_id: run_id == "other")
    ChainLock("tiny").take(Holder(dag_id="tiny", run_id="other", run="other"), chain_lock.runs_in_airflow)
    with pytest.raises(TaskDeferred) as waits:
        operator(Launch, "1:0:0").execute(context=context_of(try_number=2))
    assert isinstance(waits.value.trigger, TurnTrigger)
    assert newest_attempt(LocalLauncher(), JobKey(refresh="tiny", run=folder.run, task="train")) is None


def test_a_run_of_an_earlier_day_goes_first(home: Path) -> None:
    context = context_of("later", run_type="backfill", day=at_three(2026, 11, 26))
    context["ti"].earlier_run = "earlier"
    with pytest.raises(TaskDeferred) as waits:
        CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH)).execute(context=context)
    assert waits.value.trigger.serialize()[1]["earlier"] == "earlier"
    assert ChainLock("tiny").holder() is None


def test_a_late_day_is_waited_for_then_checked(folder: RunFolder) -> None:
    task = operator(CheckSchema, "*:0:0")
    with pytest.raises(TaskDeferred) as waits:
        task.execute(context=context_of())
    trigger = waits.value.trigger
    assert isinstance(trigger, LandingTrigger)
    assert trigger.days == ["2026-11-27", "2026-11-28"]
    with pytest.raises(TaskDeferred) as checks:
        getattr(task, waits.value.method_name)(context_of(), event={})
    assert isinstance(checks.value.trigger, JobTrigger)


def test_closed_days_are_skipped_with_all_that_follows(folder: RunFolder) -> None:
    land(folder, closed="Christmas")
    context = context_of()
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        operator(CheckSchema, "*:65:65").execute(context=context)
    assert skipped.value.tasks == ["launch", "train", "publish", "ett", "report"]
    assert context["ti"].pushed == {"closed_days": ["2026-11-27", "2026-11-28"]}
    assert stamps(folder, "check_schema") == ["task_code_start", "task_end"]
    assert ChainLock("tiny").holder() is None


def test_a_dry_run_shows_what_would_be_and_writes_nothing(home: Path) -> None:
    context = context_of("trial", params={"dry_run": True, "dense_learning_rate": 0.5, "artifact_cache": "off"})
    with pytest.raises(DownstreamTasksSkipped):
        CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH)).execute(context=context)
    shown = context["ti"].pushed["dry_run"]
    assert shown["spec"]["refresh"]["training"]["dense_learning_rate"] == 0.5
    assert shown["differs"]["refresh.training.dense_learning_rate"] == {"daily": 0.002, "here": 0.5}
    assert shown["differs"]["refresh.optimizations.artifact_cache"] == {"daily": None, "here": False}
    assert shown["differs"]["run.purpose"] == {"daily": "daily", "here": "tuning"}
    assert not list(home.glob("runs/**/*"))
    assert not list(home.glob("local/jobs/*"))


def test_an_asset_that_brings_no_new_day_is_no_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = NothingToTrainError("every landed day is trained")
    monkeypatch.setattr(operators, "resolve", lambda *_: (_ for _ in ()).throw(nothing))
    check = CheckSchemaOperator(task_id="check_schema", spec_path=str(SPEC_PATH))
    with pytest.raises(DownstreamTasksSkipped):
        check.execute(context=context_of("by-asset", run_type="asset_triggered"))
    with pytest.raises(AirflowFailException, match="every landed day is trained"):
        check.execute(context=context_of())


@pytest.mark.parametrize("live", [True, False])
def test_the_snapshot_asset_has_an_event_only_if_the_version_went_live(folder: RunFolder, live: bool) -> None:
    registered(folder, live=live)
    task = Publish(task_id="publish", snapshot=snapshot_asset("tiny"))
    task.steps = ("1:0:0",)
    deferral, context = deferred(task), context_of()
    task.resume(context, event={"status": ended(folder, "publish").to_dict()}, **deferral.kwargs)
    extra = {"version": "by-hand", "window_start": "2026-11-27", "window_end": "2026-11-29"}
    assert context["outlet_events"][snapshot_asset("tiny")].extra == (extra if live else None)
    assert task.outlets == ([snapshot_asset("tiny")] if live else [])


def test_a_publish_job_that_registered_nothing_is_no_success(folder: RunFolder) -> None:
    with pytest.raises(AirflowException, match="not in the registry"):
        try_once(operator(Publish, "1:0:0"), folder, "publish")


def test_a_person_who_clears_a_task_held_for_its_preemptions_grants_a_new_budget(folder: RunFolder) -> None:
    steps = ("1:10:75", "2:20:75", "3:30:75", "4:40:75", "5:100:0")
    task = operator(Train, *steps)
    deferral = deferred(task)
    for _ in range(2):
        with pytest.raises(TaskDeferred) as again:
            resumed(task, deferral, ended(folder))
        deferral = again.value
    with pytest.raises(AirflowFailException, match="clear this task"):
        resumed(task, deferral, ended(folder))
    deferral = deferred(task, try_number=2)
    with pytest.raises(TaskDeferred) as again:
        resumed(task, deferral, ended(folder), try_number=2)
    assert resumed(task, again.value, ended(folder), try_number=2)


def test_the_job_s_log_is_shown_line_by_line_and_each_line_once(folder: RunFolder) -> None:
    task = operator(Train, "1:50:wait")
    handle = JobHandle.parse(deferred(task).kwargs["handle"])
    shown = JobLog(handle)
    lines: list[str] = []
    wait_until(lambda: lines.extend(shown.new_lines()) or lines, "the job says nothing")
    assert lines == ["[0] attempt 1 up to 50"]
    assert JobLog(handle).new_lines() == []


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
