"""A refresh is green only with its own registered snapshot; a red one names the first task that failed, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from ett_airflow import report_operator
from ett_airflow.operators import airflow_run
from ett_airflow.outcome import first_failure, last_messages
from ett_airflow.report_operator import RefreshFailedError, ReportOperator
from ett_airflow.resolution import resolve
from ett_airflow.stamps import Stamps, newest_try

from ett_reports.events import Point
from ett_reports.reader import read_log
from tests.plugins.conftest import SPEC_PATH, context_of
from trainer.run_folder import RunFolder, registry_root
from trainer.spec import load_spec

GREEN = {"check_schema": "success", "launch": "success", "train": "success", "publish": "success", "ett": "success"}


@pytest.fixture
def folder(home: Path) -> RunFolder:
    resolve(load_spec(SPEC_PATH), airflow_run(context_of()))
    return RunFolder.of("tiny", "by-hand")


def report(monkeypatch: pytest.MonkeyPatch, states: dict[str, str]) -> Any:
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_: {"by-hand": {**states, "report": "running"}})
    )
    monkeypatch.setattr(report_operator, "join_airflow", lambda run, context: None)
    return ReportOperator(task_id="report").execute(context=context_of())


def register(folder: RunFolder) -> None:
    version = registry_root() / "tiny" / "versions" / folder.run
    version.mkdir(parents=True)
    (version / "manifest.json").write_text("{}")


def test_green_needs_all_tasks_and_a_snapshot(
    folder: RunFolder, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(folder)
    assert report(monkeypatch, GREEN) == {}  # no training job, no report; both are real in the integration tests


@pytest.mark.parametrize("publish", ["success", "skipped"])
def test_a_publish_that_left_no_snapshot_is_never_green(
    folder: RunFolder, outside_airflow: None, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    with pytest.raises(RefreshFailedError, match=r"publish"):
        report(monkeypatch, {**GREEN, "publish": publish})


def test_another_run_s_snapshot_does_not_count(
    folder: RunFolder, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(RunFolder.of("tiny", "yesterday"))
    with pytest.raises(RefreshFailedError, match="no snapshot of this run"):
        report(monkeypatch, GREEN)


def test_a_red_refresh_says_which_task_and_what_it_said_last(
    folder: RunFolder, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, message in ((1, "attempt 1 failed"), (2, "crash loop")):
        with Stamps(folder, task="train", try_number=number) as stamps:
            stamps.stamp(Point.TASK_END, outcome="failed", message=message)
    with pytest.raises(RefreshFailedError, match="the refresh failed in train: crash loop"):
        report(monkeypatch, {**GREEN, "train": "failed", "publish": "upstream_failed"})


def test_a_task_that_died_without_a_word_is_named_all_the_same() -> None:
    failure = first_failure({**GREEN, "publish": "failed"}, {})
    assert failure is not None
    assert str(failure) == "publish: ended failed in Airflow, without a message"


def test_the_newest_try_is_known_by_its_stamps(folder: RunFolder) -> None:
    assert newest_try(folder, "train") == 0
    for task, number in (("train", 1), ("train", 12), ("train-x", 30)):
        with Stamps(folder, task=task, try_number=number) as stamps:
            stamps.stamp(Point.TASK_CODE_START)
    assert newest_try(folder, "train") == 12
    assert last_messages(read_log(folder.events_dir)) == {}
