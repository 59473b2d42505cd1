"""Airflow's parts killed in mid-training, one at a time: the run ends green, its job ran once, every second is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ett_airflow.airflow_api import AirflowApiError

from ett_reports.events import Phase
from tests.e2e.conftest import RealAirflow, Refresh, day, kill, wait_until
from trainer.launch import JobState
from trainer.run_folder import safe_name

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(900)]

GREEN = dict.fromkeys(("check_schema", "launch", "train", "publish", "ett", "report"), "success")


@pytest.fixture(scope="module")
def dag(airflow: RealAirflow) -> Iterator[str]:
    """A refresh of its own on the data of `tiny`, so that no other test finds its anchors."""
    path = airflow.specs / "killed.yaml"
    path.write_text((airflow.specs / "tiny.yaml").read_text().replace("name: tiny", "name: killed"))
    known = lambda: "killed" in {each["dag_id"] for each in airflow.api.get("/dags")["dags"]}  # noqa: E731
    wait_until(known, lambda: f"no DAG: {airflow.api.get('/importErrors')}")
    airflow.api.patch("/dags/killed", {"is_paused": False})
    yield "killed"
    path.unlink()


@pytest.fixture
def run(airflow: RealAirflow, dag: str, request: pytest.FixtureRequest) -> Iterator[Refresh]:
    """A refresh of one day, in training."""
    run = Refresh(airflow, safe_name(request.node.name), dag)
    conf = {"window_start": day(1), "window_end": day(0)}
    airflow.api.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run.run_id, "logical_date": None, "conf": conf})
    run.until(lambda: run.tasks().get("train") == "deferred", "train does not wait in the triggerer")
    run.train_a_while()
    yield run
    run.stop()


def undisturbed(run: Refresh) -> None:
    """What a refresh without any kill would show, too."""
    wait_until(lambda: ended(run), lambda: f"the run does not end; train: {run.attempts()}")
    assert run.state == "success", run.tasks()
    report, tasks = run.report(), run.tasks()
    degraded = [*report.job.degraded, *report.refresh.degraded]
    # Airflow may never learn of a try's stamps that it was to be told while it was away; that, and nothing else, the
    # sensor then says in red.
    assert all("no stamps of Airflow" in reason for reason in degraded), degraded
    assert tasks == (GREEN | {"ett": "failed"} if degraded else GREEN)
    assert [status.state for status in run.attempts()] == [JobState.SUCCEEDED]
    job = report.job
    assert job.nof == 0
    # What no source explains is less than a busy machine takes to start a process.
    assert sum(total.exposed_ns for total in job.phases if total.phase is Phase.UNATTRIBUTED) < job.wall_ns / 100
    assert sum(job.l1.values()) == sum(job.l2.values()) == job.wall_ns


def ended(run: Refresh) -> bool:
    """Whether Airflow says so; it may not answer for a while."""
    try:
        return run.state in ("success", "failed")
    except AirflowApiError:
        return False


def healthy(airflow: RealAirflow) -> None:
    """All components are well again, and each is a process that lives."""
    from ett_airflow.stack.server import wait_healthy

    wait_healthy(airflow.server)


@pytest.mark.parametrize("component", ["scheduler", "api-server"])
def test_a_killed_component_costs_the_run_nothing(airflow: RealAirflow, run: Refresh, component: str) -> None:
    before = airflow.component(component)
    kill(before)
    wait_until(lambda: airflow.component(component) != before, lambda: f"{component} is not started again")
    undisturbed(run)
    healthy(airflow)


def test_a_database_that_crashes_and_restarts_costs_the_run_nothing(airflow: RealAirflow, run: Refresh) -> None:
    """Every component loses all its connections, and finds no server until it is back."""
    if airflow.postgres is None:
        pytest.skip("Debian's postgresql is not installed; .ci/run installs it")
    rows = run.trained_rows()
    airflow.postgres.kill()
    wait_until(lambda: run.trained_rows() > rows, lambda: "training stands still while the database is away")
    airflow.postgres.start()
    undisturbed(run)
    healthy(airflow)
