"""Refreshes by a real Airflow: green, recovered, red, and never two copies of a job."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from ett_reports.events import Cause
from tests.e2e.conftest import RealAirflow, Refresh, day, kill, wait_until
from trainer.launch import JobState
from trainer.spec import load_run_spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

Start = Callable[..., Refresh]
GREEN = dict.fromkeys(("check_schema", "launch", "train", "publish", "ett", "report"), "success")


def exact_rows(run: Refresh) -> None:
    """Every row of the plan was trained on, and none counted twice."""
    plan = json.loads(run.folder.plan_path.read_text())
    report = run.report().job
    rows = sum(group["train_rows"] for file in plan["files"] for group in file["row_groups"])
    assert report.high_water_mark == report.planned_samples == rows


@pytest.fixture(scope="session")
def first(airflow: RealAirflow) -> Refresh:
    """The first refresh, on two days; the others start from its anchor."""
    run = airflow.trigger("first", window_start=day(5), window_end=day(3))
    assert run.ended() == "success", run.tasks()
    return run


def test_a_refresh_is_green_and_leaves_a_snapshot_and_a_report(first: Refresh) -> None:
    assert first.tasks() == GREEN
    exact_rows(first)
    report = first.report()
    assert report.job.nof == 0
    assert sum(report.job.l2.values()) == report.job.wall_ns
    assert sum(report.job.l1.values()) == report.job.wall_ns
    assert report.refresh is not None
    assert [task.task for task in report.refresh.tasks] == list(GREEN)
    assert report.refresh.freshness_ns is not None
    assert not report.job.degraded, report.job.degraded


def test_the_plugin_has_no_import_error_and_its_page_is_for_who_may_see_the_dag(
    airflow: RealAirflow, first: Refresh
) -> None:
    assert airflow.api.get("/plugins/importErrors")["import_errors"] == []
    assert [plugin["name"] for plugin in airflow.api.get("/plugins")["plugins"]] == ["ett"]
    page = f"{airflow.server.url}/ett/run?dag_id=tiny&run_id=first"
    assert fetched(page) == 401
    links = airflow.api.get("/dags/tiny/dagRuns/first/taskInstances/report/links")["extra_links"]
    assert links == {"ETT report": "/ett/run?dag_id=tiny&run_id=first"}
    token = airflow.api.token
    assert fetched(page, token) == 200
    for escaping in ("dag_id=~&run_id=first", "dag_id=..&run_id=tiny", "dag_id=tiny&run_id=..", "dag_id=tiny&run_id=x"):
        assert fetched(f"{airflow.server.url}/ett/run?{escaping}", token) == 404


def test_a_broken_spec_is_an_import_error_of_its_file_and_the_other_refreshes_remain(airflow: RealAirflow) -> None:
    def errors() -> dict[str, str]:
        found = airflow.api.get("/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    path = airflow.specs / "broken.yaml"
    text = (airflow.specs / "tiny.yaml").read_text()
    path.write_text(text.replace("name: tiny", "name: broken").replace("batch_size: 64", "batch_size: 0"))
    wait_until(lambda: "refreshes/broken.yaml" in errors(), lambda: str(errors()))
    line = 1 + next(number for number, each in enumerate(text.splitlines()) if "batch_size" in each)
    assert f"broken.yaml:{line}: training.batch_size:" in errors()["refreshes/broken.yaml"]
    assert list(errors()) == ["refreshes/broken.yaml"]
    dag = airflow.api.get("/dags/tiny")
    assert not dag["is_stale"]
    assert not dag["has_import_errors"]
    path.unlink()
    wait_until(lambda: errors() == {}, lambda: str(errors()))


def fetched(url: str, token: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.chaos
def test_p24_the_next_day_starts_from_the_last_anchor_and_survives_killed_followers(
    airflow: RealAirflow, first: Refresh, refresh: Start
) -> None:
    """kill -9 of the task between submit and defer, then of the triggerer in mid-training: one job existed."""
    run = refresh("next-day")
    run.until(lambda: run.attempts() and run.task_processes("launch", 1), "no job is submitted")
    kill(run.task_processes("launch", 1)[0])
    run.train_a_while()
    kill(airflow.component("triggerer"))
    assert run.ended() == "success", run.tasks()
    assert [status.state for status in run.attempts()] == [JobState.SUCCEEDED]
    spec = load_run_spec(run.folder.spec_path).run
    assert (spec.window.start.isoformat(), spec.window.days) == (day(3), 1)
    assert spec.warm_start is not None
    assert spec.warm_start.run == "first"
    assert run.report().job.nof == 0
    exact_rows(run)


@pytest.mark.chaos
def test_p24_a_killed_rank_costs_one_retry_and_no_row(first: Refresh, refresh: Start) -> None:
    """Then the retry's own process is killed between submit and defer: the next try finds its attempt."""
    run = refresh("killed-rank", window_start=day(2))
    run.train_a_while()
    kill(run.attempts()[0].ranks[1].pid)
    run.until(lambda: run.tasks()["train"] == "up_for_retry", "train is not retried")
    run.until(lambda: len(run.attempts()) == 2 and run.task_processes("train", 2), "no second attempt")
    kill(run.task_processes("train", 2)[0])
    assert run.ended() == "success", run.tasks()
    assert [status.state for status in run.attempts()] == [JobState.FAILED, JobState.SUCCEEDED]
    report = run.report().job
    assert [(failure.cause, failure.recovered) for failure in report.failures] == [(Cause.INFRASTRUCTURE, True)]
    assert report.nof == 1
    exact_rows(run)
