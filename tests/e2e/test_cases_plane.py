"""Public failures of other people's control planes (cases P21 to P32), by a real Airflow and jobs of a few lines."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from ett_airflow.airflow_api import AirflowApiError

from ett_reports.events import Cause, Component
from tests.e2e.conftest import NEWEST, RealAirflow, Refresh, kill, wait_until
from trainer.launch import JobHandle, JobState, JobStatus, launcher_for
from trainer.spec import RunInfo, load_run_spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Start = Callable[..., Refresh]
GREEN = dict.fromkeys(("check_schema", "launch", "train", "publish", "ett", "report"), "success")


@pytest.fixture(scope="module")
def plane(airflow: RealAirflow) -> RealAirflow:
    wait_until(lambda: known(airflow) >= {"cases", "dated"}, lambda: str(airflow.api.get("/importErrors")))
    airflow.api.patch("/dags/cases", {"is_paused": False})
    return airflow


def known(airflow: RealAirflow) -> set[str]:
    return {dag["dag_id"] for dag in airflow.api.get("/dags")["dags"]}


@pytest.fixture
def case(plane: RealAirflow) -> Iterator[Start]:
    """Triggers a run of DAG `cases`, of the newest day, and makes sure that it does not outlive its test."""
    started: list[Refresh] = []

    def start(run_id: str, **params: Any) -> Refresh:
        params = {"window_start": str(NEWEST), **params}
        plane.api.post("/dags/cases/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": params})
        started.append(Refresh(plane, run_id, dag="cases"))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def handle_of(run: Refresh, attempt: int) -> JobHandle:
    from trainer.launch import JobKey

    handle = launcher_for("local").find(JobKey(refresh=run.dag, run=run.run_id, task="train", attempt=attempt))
    assert handle is not None
    return handle


def waits_for(run: Refresh, attempt: int) -> JobStatus:
    """Until `train` is deferred on a job that has started."""

    def here() -> bool:
        found = run.attempts()
        return run.state == "failed" or (len(found) >= attempt and bool(found[-1].ranks))

    run.until(here, f"no attempt {attempt}")
    run.until(lambda: run.tasks().get("train") not in (None, "scheduled", "queued", "running"), "train does not wait")
    found = run.attempts()
    assert (run.tasks().get("train"), len(found)) == ("deferred", attempt), found
    return found[-1]


def log_of(run: Refresh, task: str, try_number: int = 1) -> str:
    path = f"/dags/{run.dag}/dagRuns/{run.run_id}/taskInstances/{task}/logs/{try_number}"
    lines = run.airflow.api.get(path, full_content="true")["content"]
    return "\n".join(str(line.get("event") if isinstance(line, dict) else line) for line in lines)


def xcom(run: Refresh, task: str, key: str) -> Any:
    path = f"/dags/{run.dag}/dagRuns/{run.run_id}/taskInstances/{task}/xcomEntries/{key}"
    value = run.airflow.api.get(path)["value"]
    return json.loads(value) if isinstance(value, str) else value


def left_by(run: Refresh, callback: str) -> list[str]:
    return sorted(path.name for path in run.folder.root.glob(f"*-{callback}-*"))


def test_p21_a_job_that_runs_by_the_scheduler_s_word_alone_is_no_training_time(case: Start) -> None:
    """Its ranks hold their devices in silence, then it is preempted; the next attempt trains."""
    run = case("p21", train_steps="1:0:silent 2:100:0")
    assert waits_for(run, 1).state is JobState.RUNNING
    run.until(lambda: "no step yet" in log_of(run, "train"), "the log does not say that nothing is trained")
    assert "ETT so far 0.0%" in log_of(run, "train")
    launcher_for("local").preempt(handle_of(run, 1))
    assert run.ended() == "success", run.tasks()
    report = run.report().job
    silent = report.attempts[0]
    assert (silent.steps, silent.productive_ns, report.failures[0].cause) == (0, 0, Cause.PREEMPTION)
    assert report.l2[Component.EFFECTIVE_TRAINING] == report.productive_ns == report.attempts[1].productive_ns
    productive = [part for part in report.segments if part.l2 is Component.EFFECTIVE_TRAINING]
    assert all(part.start_ns >= silent.end_ns for part in productive)
    assert run.tasks()["ett"] == "failed", "a figure without any word of a rank is not green"
    assert xcom(run, "ett", "headline")["degraded"] == ["attempt 1: no trainer events"]


def test_p23_a_restarted_triggerer_leaves_the_job_alone_and_a_person_s_act_cancels_it(
    plane: RealAirflow, case: Start
) -> None:
    run = case("p23", train_steps="1:10:wait 2:20:wait")
    job = waits_for(run, 1).ranks[0].pid
    before = plane.component("triggerer")
    os.kill(before, signal.SIGTERM)
    noted = plane.server.stack.logs / "triggerer.pid"
    wait_until(lambda: noted.read_text().strip() not in ("", str(before)), lambda: "no new triggerer", 120)
    shown = run.folder.root / "control" / f"shown-{handle_of(run, 1).id}.json"
    shown.unlink(missing_ok=True)
    run.until(shown.exists, "the new triggerer does not follow the job")
    assert [(each.state, each.ranks[0].pid) for each in run.attempts()] == [(JobState.RUNNING, job)]
    for _ in range(2):  # clearing again changes nothing
        clear(run, "train")
    run.until(lambda: run.attempts()[0].state is JobState.CANCELLED, "the job is not cancelled by a clear")
    waits_for(run, 2)
    mark_failed(run, "train")
    run.until(lambda: run.attempts()[1].state is JobState.CANCELLED, "the job is not cancelled by hand")
    assert run.ended() == "failed"
    assert len(run.attempts()) == 2
    assert [failure.cause for failure in run.report().job.failures] == [Cause.CANCELLED, Cause.CANCELLED]


def clear(run: Refresh, task: str) -> None:
    body = {"dry_run": False, "dag_run_id": run.run_id, "task_ids": [task], "only_failed": False}
    run.airflow.api.post(f"/dags/{run.dag}/clearTaskInstances", {**body, "include_downstream": True})


def mark_failed(run: Refresh, task: str) -> None:
    path = f"/dags/{run.dag}/dagRuns/{run.run_id}/taskInstances/{task}"
    run.airflow.api.patch(path, {"new_state": "failed"})


@pytest.mark.chaos
def test_p24_a_task_killed_while_it_resumes_finds_the_job_that_it_has_submitted(case: Start) -> None:
    """Also killed between submit and defer, in tests/e2e/test_refresh.py, where the triggerer is killed too."""
    run = case("p24", train_steps="1:10:wait 2:100:0")
    waits_for(run, 1)
    began = set(run.task_processes("train", 1))
    launcher_for("local").preempt(handle_of(run, 1))
    run.until(lambda: set(run.task_processes("train", 1)) - began, "train does not resume")
    kill((set(run.task_processes("train", 1)) - began).pop())
    assert run.ended() == "success", run.tasks()
    assert [each.state for each in run.attempts()] == [JobState.PREEMPTED, JobState.SUCCEEDED]
    assert run.report().job.nof == 1


def test_p25_an_error_in_the_trigger_is_retried_before_anybody_is_told_of_a_failure(case: Start) -> None:
    """To a triggerer that does not know the job (its record cannot be seen), it is an error; there is one retry."""
    run = case("p25", train_steps="1:10:wait")
    waits_for(run, 1)
    record = run.airflow.home / "local" / "jobs" / handle_of(run, 1).id / "request.json"
    hidden = record.rename(record.with_suffix(".hidden"))
    run.until(lambda: run.tasks()["train"] != "deferred", "the trigger does not tell")
    hidden.rename(record)
    run.until(lambda: left_by(run, "retried") or left_by(run, "failed"), "train is neither retried nor failed")
    assert (left_by(run, "retried"), left_by(run, "failed")) == (["train-retried-1"], [])
    run.until(lambda: run.tasks()["train"] == "deferred", "train does not wait again")
    assert [each.state for each in run.attempts()] == [JobState.RUNNING], "found again, not submitted again"
    assert left_by(run, "failed") == []


@pytest.mark.chaos
def test_a_run_marked_failed_while_no_trigger_follows_its_job_leaves_no_job_behind(case: Start) -> None:
    """The triggerer stands still, as in the moment between a task's deferral and its trigger's start."""
    run = case("unfollowed", train_steps="1:10:wait")
    waits_for(run, 1)
    triggerer = psutil.Process(run.airflow.component("triggerer"))
    stopped = [triggerer, *triggerer.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        run.airflow.api.patch(f"/dags/{run.dag}/dagRuns/{run.run_id}", {"state": "failed"})
        run.until(lambda: [each.state for each in run.attempts()] == [JobState.CANCELLED], "its job goes on")
    finally:
        for process in stopped:
            process.resume()


def test_p28_a_publish_that_is_skipped_on_its_retry_leaves_the_run_red(case: Start) -> None:
    run = case("p28", publish_steps="1:0:1", skip_publish_on_retry=True)
    assert run.ended() == "failed"
    assert run.tasks()["publish"] == "skipped"
    assert "publish" in run.message("report")


@pytest.mark.chaos
def test_p32_a_resumed_run_shows_all_of_its_time_and_a_dead_attempt_ends_at_its_last_sign_of_life(case: Start) -> None:
    """The launcher finds it dead and says when it saw that; without such a word its end is inferred (golden cases)."""
    run = case("p32", train_steps="1:40:wait 2:100:0")
    rank = waits_for(run, 1).ranks[0].pid
    supervisor = json.loads((run.airflow.home / "local" / "jobs" / handle_of(run, 1).id / "status.json").read_text())
    lost = [psutil.Process(pid) for pid in (supervisor["supervisor"]["pid"], rank)]
    for process in lost:  # a lost machine says no last word
        process.kill()
    psutil.wait_procs(lost, timeout=10)
    died_ns = time.time_ns()
    assert run.ended() == "success", run.tasks()
    report = run.report().job
    first, second = report.attempts
    (failure,) = report.failures
    assert report.submitted_unix_ns + failure.failure_ns <= died_ns, "it trains no longer than it lived"
    assert failure.failure_ns < failure.detected_ns
    assert sum(report.l1.values()) == sum(part.duration_ns for part in report.segments) == report.wall_ns
    assert report.wall_ns >= second.end_ns > second.start_ns > first.start_ns == 0
    productive = [part for part in report.segments if part.l2 is Component.EFFECTIVE_TRAINING]
    assert [part.attempt for part in productive] == [1, 2], "both segments are shown"
    between = [part for part in report.segments if productive[0].end_ns <= part.start_ns < productive[1].start_ns]
    assert sum(part.duration_ns for part in between) == productive[1].start_ns - productive[0].end_ns
    assert report.high_water_mark == 100


def test_a_refresh_shows_its_job_s_log_and_its_headline_and_its_snapshot_is_an_asset(
    plane: RealAirflow, case: Start
) -> None:
    run = case("whole", train_steps="1:100:0")
    assert run.ended() == "success"
    assert run.tasks() == GREEN
    assert "[0] attempt 1 up to 100" in log_of(run, "launch") + log_of(run, "train")
    headline = xcom(run, "ett", "headline")
    assert headline["degraded"] == []
    assert 0 < headline["ett"] <= 1
    assert set(headline["tasks"]) >= {"check_schema", "launch", "train", "publish"}
    (asset,) = plane.api.get("/assets", name_pattern="cases/snapshot")["assets"]
    newest = plane.api.get("/assets/events", asset_id=asset["id"], order_by="-timestamp")["asset_events"][0]
    window = {"window_start": str(NEWEST), "window_end": str(NEWEST + timedelta(days=1))}
    assert newest["extra"] == {"version": "whole", **window}


def test_a_dry_run_shows_the_spec_and_what_differs_and_does_nothing(case: Start) -> None:
    run = case("dry", dry_run=True, dense_learning_rate=0.25, dynamic_shapes="off")
    assert run.ended() == "success"
    assert run.tasks() == {**dict.fromkeys(GREEN, "skipped"), "check_schema": "success"}
    differs = xcom(run, "check_schema", "dry_run")["differs"]
    assert differs["refresh.training.dense_learning_rate"] == {"daily": 0.002, "here": 0.25}
    assert "refresh.training.dense_learning_rate: 0.25 (daily: 0.002)" in log_of(run, "check_schema")
    assert not run.folder.root.exists()


def test_an_old_day_that_is_cleared_is_trained_again_and_makes_stale_what_was_built_on_it(case: Start) -> None:
    old = case("old", window_start=str(NEWEST - timedelta(days=3)))
    assert old.ended() == "success"
    later = case("later", window_start=str(NEWEST - timedelta(days=2)))
    assert later.ended() == "success"
    start = load_run_spec(later.folder.spec_path).run.warm_start
    assert start is not None
    assert start.run == "old"
    clear(old, "check_schema")
    old.until(lambda: old.state not in ("success", "failed"), "the clear does not start it")
    assert old.ended() == "success"
    again = old.folder.root.with_name("old.again2")
    assert (again / "anchor" / "manifest.json").is_file()
    assert json.loads((later.folder.root / "stale.json").read_text())["replaced_by"] == "old.again2"
    assert xcom(old, "train", "stale_descendants") == ["later"]
    assert "later" in log_of(old, "train", 2)


class Dated:
    """DAG `dated`, in which every run has its window: runs by what started them."""

    def __init__(self, airflow: RealAirflow) -> None:
        self.api = airflow.api
        self.airflow = airflow

    def runs(self, run_type: str) -> list[dict[str, Any]]:
        found = self.api.get("/dags/dated/dagRuns", run_type=run_type, order_by="logical_date")["dag_runs"]
        return list(found)

    def decided(self, run_type: str, number: int = 1) -> list[RunInfo]:
        """What the first `number` runs of a type have decided, once they have."""
        wait_until(lambda: len(self._folders(run_type)) >= number, lambda: f"{run_type}: {self.runs(run_type)}")
        return [load_run_spec(folder.spec_path).run for folder in self._folders(run_type)][:number]

    def _folders(self, run_type: str) -> list[Any]:
        from ett_airflow.generation import RunIdentity

        folders = [RunIdentity("dated", run["dag_run_id"]).folder for run in self.runs(run_type)]
        return [folder for folder in folders if folder.spec_path.exists()]

    def over(self, run_type: str) -> None:
        """Until every run of the type has ended well."""

        def states() -> list[str]:
            return [run["state"] for run in self.runs(run_type)]

        wait_until(lambda: set(states()) <= {"success", "failed"}, lambda: f"{run_type}: {states()}")
        assert set(states()) == {"success"}


def backfill(plane: RealAirflow, body: dict[str, Any]) -> None:
    """Airflow cannot lock SQLite for this while others write, and says so."""

    def created() -> bool:
        try:
            plane.api.post("/backfills", body)
        except AirflowApiError as error:
            if error.status != 503:
                raise
            return False
        return True

    wait_until(created, lambda: "no backfill")


def land(root: Path, day: date) -> None:
    """Its marker; the test's own check reads no more."""
    marker = root / f"day={day}" / "_LANDED.json"
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"closed": None}))


@pytest.fixture
def dated(plane: RealAirflow) -> Iterator[Dated]:
    plane.api.patch("/dags/dated", {"is_paused": False})
    yield Dated(plane)
    plane.api.patch("/dags/dated", {"is_paused": True})


def test_p27_scheduled_manual_backfill_and_asset_runs_each_say_their_days_and_train_one_at_a_time(
    plane: RealAirflow, dated: Dated
) -> None:
    (scheduled,) = dated.decided("scheduled")
    (by_airflow,) = dated.runs("scheduled")[:1]
    start, end = (date.fromisoformat(by_airflow[f"data_interval_{name}"][:10]) for name in ("start", "end"))
    assert end in (datetime.now(UTC).date(), datetime.now(UTC).date() - timedelta(days=1))
    assert scheduled.window.end == end
    assert scheduled.window.start == start - timedelta(days=1), "a first window, as nothing is trained yet"
    dated.over("scheduled")
    late = plane.home / "runs" / "dated" / "alerts.json"
    wait_until(lambda: late.exists() and "freshness" in late.read_text(), lambda: "its deadline passes unnoticed")
    newest = end + timedelta(days=2)
    land(plane.home / "data" / "dated", newest)
    days = {"from_date": end - timedelta(days=9), "to_date": end - timedelta(days=8)}
    body = {"dag_id": "dated", "max_active_runs": 2, "reprocess_behavior": "none"}
    backfill(plane, {**body, **{name: f"{day}T00:00:00Z" for name, day in days.items()}})
    (asset,) = plane.api.get("/assets", name_pattern="landing")["assets"]
    plane.api.post("/assets/events", {"asset_id": asset["id"], "extra": {}})
    first, second = dated.decided("backfill", 2)
    assert [str(run.window.end - timedelta(days=1)) for run in (first, second)] == [str(day) for day in days.values()]
    assert second.warm_start is not None
    assert second.warm_start.run == first.run, "the earlier day was trained before the later one was decided"
    (by_asset,) = dated.decided("asset_triggered")
    assert by_asset.run_type == "asset_triggered"
    assert (by_asset.window.start, by_asset.window.days) == (newest, 1), "the landed day that nobody has trained"
    plane.api.post("/dags/dated/dagRuns", {"dag_run_id": "by-hand", "logical_date": None, "conf": {"days": 2}})
    (by_hand,) = dated.decided("manual")
    assert (by_hand.window.start, by_hand.window.days) == (newest - timedelta(days=1), 2)
    assert by_hand.purpose == "tuning"
