"""What a failed run leaves: its jobs are cancelled, other DAGs are not asked, and nothing is raised into Airflow."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ett_airflow.marked_failed import on_dag_run_failed

from tests.small_refresh import small_spec
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, launcher_for
from trainer.run_folder import RunFolder
from trainer.spec import RunInfo, RunSpec, Window, dump_run_spec

DAY = {"start": "2026-03-02", "end": "2026-03-03"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    return tmp_path


def failed(dag: str, run: str) -> None:
    on_dag_run_failed(dag_run=SimpleNamespace(dag_id=dag, run_id=run), msg="set by hand")  # type: ignore[arg-type]


def begun(run: str) -> RunFolder:
    folder = RunFolder.of("small", run).create()
    dump_run_spec(
        RunSpec(refresh=small_spec(), run=RunInfo(run=run, window=Window.model_validate(DAY))), folder.spec_path
    )
    return folder


def running_job(folder: RunFolder) -> JobHandle:
    launcher = launcher_for("local")
    key = JobKey(refresh=folder.refresh, run=folder.run, task="train", attempt=1)
    sleep = ("timeit", "-n1", "-r1", "import time; time.sleep(600)")
    handle = launcher.submit(JobRequest(key=key, command=sleep, run_folder=folder, grace_s=1.0))
    until(handle, JobState.RUNNING)
    return handle


def until(handle: JobHandle, state: JobState) -> None:
    end = time.monotonic() + 60
    while (found := launcher_for("local").describe(handle).state) is not state:
        assert time.monotonic() < end, f"{handle} is {found}, not {state}"
        time.sleep(0.05)


def test_a_job_that_runs_is_cancelled_and_that_of_another_run_goes_on() -> None:
    ours, other = running_job(begun("one")), running_job(begun("two"))
    failed("small", "one")
    until(ours, JobState.CANCELLED)
    assert launcher_for("local").describe(other).state is JobState.RUNNING
    failed("small", "two")
    until(other, JobState.CANCELLED)
    failed("small", "two")  # again: it has ended already
    assert launcher_for("local").describe(other).state is JobState.CANCELLED


def test_a_dag_that_is_no_refresh_and_a_run_without_a_job_are_left_alone(home: Path) -> None:
    failed("somebody_elses", "scheduled__2026-03-02T00:00:00+00:00")
    begun("without")
    failed("small", "without")
    assert not (home / "local" / "jobs").exists()


def test_what_cannot_be_read_is_said_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    begun("torn").spec_path.write_text("version: 1\nrefresh: [")
    with caplog.at_level(logging.WARNING):
        failed("small", "torn")
    assert "its jobs could not be cancelled" in caplog.text and "spec.yaml" in caplog.text
