"""Who raises alerts: the report task, and the DAG's own callback where the report could not; and of which class."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from ett_airflow import report_operator
from ett_airflow.alert_callback import TellOfRedRun
from ett_airflow.alert_failure import FailureClass, red_run
from ett_airflow.outcome import TaskFailure
from ett_airflow.report_operator import RefreshFailedError, ReportOperator
from ett_airflow.stamps import Stamps

from ett_reports.events import Point
from tests.plugins.conftest import SPEC_PATH, context_of, wait_until
from tests.plugins.test_alerts import messages, recording
from trainer.launch import JobKey, JobRequest, JobState
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder, registry_root
from trainer.spec import Alerts, Purpose, RefreshSpec, RunInfo, RunSpec, Window, dump_run_spec, load_spec

MODULES = Path(__file__).parent / "modules"
GREEN = {"check_schema": "success", "launch": "success", "train": "success", "publish": "success", "ett": "success"}


@pytest.fixture(autouse=True)
def importable(home: Path, outside_airflow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODULES))
    monkeypatch.setenv("PYTHONPATH", f"{MODULES}:{os.environ['PYTHONPATH']}")


@pytest.fixture
def told(home: Path) -> Path:
    return home / "told.jsonl"


@pytest.fixture
def refresh(told: Path) -> RefreshSpec:
    """The spec file's content: a notifier, and the owners of `tiny`."""
    notifier = recording(told, text="{{ alert.headline }}|{{ alert.team }}|{{ alert.suspect }}")
    return load_spec(SPEC_PATH).model_copy(update={"alerts": Alerts(notifiers=[notifier])})


def resolved(purpose: Purpose = Purpose.DAILY) -> RunFolder:
    folder = RunFolder.of("tiny", "by-hand").create()
    window = Window(start=date(2026, 11, 1), end=date(2026, 11, 2))
    info = RunInfo(run=folder.run, window=window, purpose=purpose)
    dump_run_spec(RunSpec(refresh=load_spec(SPEC_PATH), run=info), folder.spec_path)
    return folder


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, refresh: RefreshSpec) -> Callable[..., Any]:
    def execute(**states: str) -> Any:
        found = {"by-hand": {**GREEN, **states}}
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: found))
        monkeypatch.setattr(report_operator, "join_airflow", lambda run, context: None)
        context = {**context_of(), "dag": DAG("tiny")}
        return ReportOperator(task_id="report", refresh=refresh).execute(context=context)

    return execute


def test_a_red_report_has_told_before_it_is_red_and_a_green_one_tells_the_end(
    report: Callable[..., Any], told: Path
) -> None:
    folder = resolved()
    with Stamps(folder, task="train", try_number=1) as stamps:
        stamps.stamp(Point.TASK_END, outcome="failed", message="train: crash loop: the last 3 attempts ended without")
    with pytest.raises(RefreshFailedError):
        report(train="failed", publish="upstream_failed")
    version = registry_root() / "tiny" / "versions" / "by-hand"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text("{}")
    report()
    assert messages(told) == [
        "tiny: the refresh failed: train, crash-loop||train: crash loop: the last 3 attempts ended without",
        "tiny: the refresh succeeds again||",
    ]


def test_a_green_pipeline_without_a_snapshot_is_told_as_such(report: Callable[..., Any], told: Path) -> None:
    resolved()
    with pytest.raises(RefreshFailedError, match="no snapshot of this run was ever registered"):
        report()
    assert messages(told)[0].startswith("tiny: the refresh failed: publish, no-snapshot|")


def test_a_tuning_run_tells_nobody(report: Callable[..., Any], refresh: RefreshSpec, told: Path) -> None:
    resolved(Purpose.TUNING)
    with pytest.raises(RefreshFailedError):
        report(train="failed")
    TellOfRedRun(refresh)({"run_id": "by-hand", "reason": "task_failure"})
    assert messages(told) == []


def test_the_callback_tells_of_a_report_that_could_not_run(refresh: RefreshSpec, told: Path) -> None:
    folder = resolved()
    with Stamps(folder, task="report", try_number=3) as stamps:
        stamps.stamp(Point.TASK_END, outcome="failed", message="[Errno 28] No space left on device")
    for _ in range(2):
        TellOfRedRun(refresh)({"run_id": "by-hand", "ti": SimpleNamespace(task_id="report"), "reason": "task_failure"})
    assert messages(told) == [
        "tiny: the refresh failed: report, control-plane||report: [Errno 28] No space left on device"
    ]


def test_a_report_that_fails_for_good_tells_of_itself_and_the_callback_says_nothing_more(
    report: Callable[..., Any], refresh: RefreshSpec, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AirflowFailException, match="resolved spec cannot be used"):
        report()  # no task before it has left a spec
    TellOfRedRun(refresh)({"run_id": "by-hand", "ti": SimpleNamespace(task_id="report"), "reason": "task_failure"})
    assert messages(told) == [
        "tiny: the refresh failed: check_schema, control-plane||check_schema: ended red (no reason given), see its log"
    ]


def test_the_callback_tells_of_a_run_that_was_never_resolved_and_says_where_to_look(
    refresh: RefreshSpec, told: Path
) -> None:
    dag_run = SimpleNamespace(data_interval_end=datetime(2026, 11, 9, tzinfo=UTC))
    TellOfRedRun(refresh)({"run_id": "scheduled__2026", "dag_run": dag_run, "reason": "task_failure"})
    assert messages(told)[0].endswith("|check_schema: ended red (task_failure), see its log")
    state = json.loads((told.parent / "runs" / "tiny" / "alerts.json").read_text())
    assert state["standing"]["refresh"]["window_end"] == "2026-11-09"


@pytest.mark.parametrize(
    ("task", "step", "failure"),
    [
        ("train", "1:0:1", FailureClass.APPLICATION),
        ("train", "1:0:65", FailureClass.DATA),
        ("train", "1:0:75", FailureClass.PREEMPTION),
        ("publish", "1:0:1", FailureClass.APPLICATION),
        ("publish", "1:0:0", FailureClass.CONTROL_PLANE),
    ],
)
def test_the_class_of_a_failure_is_what_its_job_ended_of(task: str, step: str, failure: FailureClass) -> None:
    folder, launcher = resolved(), LocalLauncher()
    key = JobKey(refresh="tiny", run=folder.run, task=task)
    handle = launcher.submit(JobRequest(key=key, command=("tiny_job", step), run_folder=folder, devices=1))
    wait_until(lambda: launcher.describe(handle).terminal, "the job does not end")
    red = red_run(folder, launcher, TaskFailure(task, "failed", "some words"))
    assert (red.task, red.failure) == (task, failure)


def test_a_job_that_a_person_cancelled_is_cancelled_and_one_killed_is_infrastructure() -> None:
    folder, launcher = resolved(), LocalLauncher()
    for attempt, expected in ((1, FailureClass.CANCELLED), (2, FailureClass.INFRASTRUCTURE)):
        key = JobKey(refresh="tiny", run=folder.run, task="train", attempt=attempt)
        request = JobRequest(key=key, command=("tiny_job", "*:1:wait"), run_folder=folder, devices=1, grace_s=1.0)
        handle = launcher.submit(request)
        wait_until(lambda: launcher.describe(handle).ranks, "the job does not start")  # noqa: B023
        if expected is FailureClass.CANCELLED:
            launcher.cancel(handle)
        else:
            os.kill(launcher.describe(handle).ranks[0].pid, 9)
        wait_until(lambda: launcher.describe(handle).terminal, "the job does not end")  # noqa: B023
        assert launcher.describe(handle).state in (JobState.CANCELLED, JobState.FAILED)
        assert red_run(folder, launcher, TaskFailure("train", "failed", "")).failure is expected
