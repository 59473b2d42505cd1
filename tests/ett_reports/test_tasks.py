"""Section 12: the golden refresh, and Airflow's five traps with stamps as Airflow really writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ett_reports.events import L1, Component, Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.report import JobReport, RefreshReport, TaskReport, from_json, to_json
from ett_reports.tasks import reduce_refresh
from ett_reports.timeline import TimelineError
from tests.ett_reports.story import EPOCH_NS, SECOND, Process, Story, ns


class Dag:
    """Airflow's side of a story: operators' stamps, and what REST answers afterwards."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.operators: dict[str, Process] = {}
        self.rest: list[tuple[str, dict[str, Any]]] = []

    def stamp(self, task: str, at: float, name: str, **attrs: Any) -> None:
        if task not in self.operators:
            self.operators[task] = self.story.process(Source.AIRFLOW, f"operator-{task}", host="airflow")
        self.operators[task].at(at).point(name, task=task, **attrs)

    def run(self, task: str, code: float, end: float, outcome: str = "success", try_number: int = 1) -> None:
        self.stamp(task, code, "task_code_start", try_number=try_number)
        self.stamp(task, end, "task_end", try_number=try_number, outcome=outcome)

    def tried(self, task: str, scheduled: float, start: float, end: float | None, try_number: int = 1,
              state: str = "success") -> None:  # fmt: skip
        stamps = {"scheduled": scheduled, "queued": scheduled, "start": start, "end": end}
        unix = {name: None if at is None else EPOCH_NS + ns(at) for name, at in stamps.items()}
        self.rest.append(("task_try", {"task": task, "try_number": try_number, "state": state, **unix}))

    def dag_run(self, queued: float, end: float | None, **attrs: Any) -> None:
        stamps = {"queued": queued, "start": queued, "end": end}
        unix = {name: None if at is None else EPOCH_NS + ns(at) for name, at in stamps.items()}
        self.rest.append(("dag_run", {"state": "success", "run_type": "scheduled", **unix, **attrs}))

    def refresh(self, now: float = 0) -> tuple[JobReport | None, RefreshReport]:
        reader = self.story.process(Source.AIRFLOW, "rest", start=now, host="airflow")
        for name, attrs in self.rest:
            reader.point(name, **attrs)
        log = read_log(self.story.folder)
        try:
            report = reduce(log)
        except TimelineError:
            report = None
        refresh = reduce_refresh(log, report, EPOCH_NS + ns(now))
        assert refresh is not None
        return report, refresh


def of(refresh: RefreshReport, name: str) -> TaskReport:
    task = refresh.task(name)
    assert task is not None
    return task


@pytest.fixture
def dag(tmp_path: Path) -> Dag:
    return Dag(Story(tmp_path / "events"))


def golden(dag: Dag) -> tuple[JobReport, RefreshReport]:
    launcher = dag.story.launcher
    dag.dag_run(0, 812, window_end=EPOCH_NS - 3600 * SECOND)
    dag.run("check_schema", 2, 10)
    dag.tried("check_schema", 0, 1.5, 10)
    dag.run("launch", 12, 44)
    dag.tried("launch", 10, 11, 44)
    launcher.at(13).point("submitted", attempt=1, devices=2)
    launcher.at(43).point("allocated", attempt=1, devices=2).point("launched", attempt=1)
    first = dag.story.trainer(1, 43).point("stream", planned_samples=5370)
    first.at(103).begin(0).steps(237, seconds=1)
    dag.stamp("train", 46, "task_code_start", try_number=1)
    dag.stamp("train", 47, "task_defer", try_number=1)
    dag.story.die(1, 346, "infrastructure")
    dag.stamp("train", 346, "task_resume", try_number=1)
    dag.stamp("train", 346, "task_end", try_number=1, outcome="failed")
    dag.tried("train", 346, 45, 351, state="failed")
    dag.stamp("train", 378, "task_code_start", try_number=2)
    dag.stamp("train", 379, "task_submit", try_number=2)
    launcher.at(379).point("submitted", attempt=2, devices=2)
    launcher.at(389).point("allocated", attempt=2, devices=2).point("launched", attempt=2)
    second = dag.story.trainer(2, 389)
    # 40 of the 237 samples-of-10 steps are repeated; the stream ends with 300 new ones.
    second.at(419).begin(1970).steps(340, seconds=1)
    with second.span("final_checkpoint", until=764):  # type: ignore[arg-type]
        pass
    second.finish()
    dag.stamp("train", 768, "task_end", try_number=2, outcome="success")
    dag.tried("train", 376, 377, 768, try_number=2)
    launcher.at(766).point("released", attempt=2, outcome="completed", exit_codes=[0, 0])
    dag.run("publish", 769, 800)
    dag.tried("publish", 768, 769, 800)
    dag.story.process(Source.AIRFLOW, "publisher", start=799, host="airflow").point("snapshot_live", version="run-1")
    dag.run("report", 801, 812)
    dag.tried("report", 800, 801, 812)
    report, refresh = dag.refresh(now=900)
    assert report is not None
    return report, refresh


def test_golden_refresh(dag: Dag) -> None:
    job, refresh = golden(dag)
    assert job.wall_ns == 753 * SECOND and job.productive_ns == 537 * SECOND
    assert job.ett is not None and round(100 * job.ett, 2) == 71.31
    assert job.nof == 1 and job.l1[L1.TTS] == 90 * SECOND
    failure = job.failures[0]
    assert failure.recovery_ns == 119 * SECOND and failure.lost_ns == 6 * SECOND
    assert job.submitted_unix_ns == EPOCH_NS + 13 * SECOND

    check = of(refresh, "check_schema")
    assert (check.tries[0].queue_ns, check.tries[0].run_ns) == (2 * SECOND, 8 * SECOND)
    assert check.ett is None and check.share == 10 / 812
    launch = of(refresh, "launch")
    assert (launch.start_ns, launch.end_ns, launch.tries[0].queue_ns) == (10 * SECOND, 44 * SECOND, 2 * SECOND)
    assert launch.ett is None and launch.components[Component.SCHEDULING] == 30 * SECOND

    train = of(refresh, "train")
    assert train.interval_ns == 724 * SECOND and train.productive_ns == 537 * SECOND
    assert train.ett is not None and round(100 * train.ett, 2) == 74.17
    one, two = train.tries
    assert one.ready_ns == 44 * SECOND and one.queue_ns == 2 * SECOND
    assert one.wasted_ns == 300 * SECOND and one.deferred_ns == 299 * SECOND
    assert two.retry_wait_ns == 30 * SECOND and two.queue_ns == 2 * SECOND and two.wasted_ns == 0
    assert sum(train.components.values()) == 722 * SECOND  # its interval, less the 2 s after the job's release
    assert refresh.wall_ns == 812 * SECOND
    assert refresh.freshness_ns == (3600 + 799) * SECOND and refresh.snapshot_version == "run-1"
    assert refresh.run_type == "scheduled" and refresh.degraded == ()


def test_report_survives_json(dag: Dag) -> None:
    job, refresh = golden(dag)
    assert from_json(to_json(job)) == job
    assert from_json(to_json(refresh)) == refresh


def test_trap_1_cold_api_server_stamps_the_start_before_the_code_runs(dag: Dag) -> None:
    dag.dag_run(0, 40)
    dag.run("check_schema", 12, 30)
    dag.tried("check_schema", 1, 3, 30)
    check = of(dag.refresh()[1], "check_schema").tries[0]
    assert check.queue_ns == 11 * SECOND and check.run_ns == 18 * SECOND
    assert check.overridden == ("start",)


def test_trap_2_end_of_a_failed_try_is_late(dag: Dag) -> None:
    dag.dag_run(0, 60)
    dag.run("publish", 2, 20, outcome="failed")
    dag.tried("publish", 0, 1, 25, state="failed")
    dag.run("publish", 32, 50, try_number=2)
    dag.tried("publish", 30, 31, 50, try_number=2)
    one, two = of(dag.refresh()[1], "publish").tries
    assert one.end_ns == 20 * SECOND and one.wasted_ns == 18 * SECOND and "end" in one.overridden
    assert two.retry_wait_ns == 10 * SECOND


def test_trap_3_deferral_overwrites_scheduled_and_queued(dag: Dag) -> None:
    dag.dag_run(0, 320)
    dag.run("check_schema", 2, 10)
    dag.tried("check_schema", 0, 1, 10)
    dag.stamp("train", 14, "task_code_start", try_number=1)
    dag.stamp("train", 15, "task_defer", try_number=1)
    dag.stamp("train", 300, "task_resume", try_number=1)
    dag.stamp("train", 301, "task_end", try_number=1, outcome="success")
    # As measured: start_date stays, scheduled and queued are those of the resume, so queue time would be negative.
    dag.tried("train", 298, 13, 301)
    train = of(dag.refresh()[1], "train").tries[0]
    assert train.ready_ns == 10 * SECOND and train.queue_ns == 4 * SECOND
    assert train.deferred_ns == 285 * SECOND and train.run_ns == 2 * SECOND
    assert "scheduled" in train.overridden and train.provenance == "estimated"


def test_trap_3_readiness_noted_by_the_operator_survives(dag: Dag) -> None:
    dag.dag_run(0, 320)
    dag.stamp("train", 14, "task_code_start", try_number=1, scheduled=EPOCH_NS + 11 * SECOND)
    dag.stamp("train", 15, "task_defer", try_number=1)
    dag.stamp("train", 300, "task_resume", try_number=1)
    dag.stamp("train", 301, "task_end", try_number=1, outcome="success")
    dag.tried("train", 298, 13, 301)
    train = of(dag.refresh()[1], "train").tries[0]
    assert train.ready_ns == 11 * SECOND and train.provenance == "measured"


def test_trap_4_rescheduled_sensor_shows_its_last_poke_only(dag: Dag) -> None:
    dag.dag_run(0, 200)
    for poke in (5, 65, 125):
        dag.stamp("ett", poke, "task_code_start", try_number=1)
    dag.stamp("ett", 127, "task_end", try_number=1, outcome="success")
    dag.tried("ett", 124, 125, 127)
    sensor = of(dag.refresh()[1], "ett").tries[0]
    assert sensor.code_start_ns == 5 * SECOND and sensor.run_ns == 122 * SECOND


def test_trap_5_listeners_fire_again_at_each_poke_and_resume(dag: Dag) -> None:
    dag.dag_run(0, 100)
    dag.stamp("train", 4, "task_code_start", try_number=1)
    for defer, resume in ((5, 30), (31, 60)):
        dag.stamp("train", defer, "task_defer", try_number=1)
        dag.stamp("train", resume, "task_resume", try_number=1)
        dag.stamp("train", resume, "task_code_start", try_number=1)
    dag.stamp("train", 62, "task_end", try_number=1, outcome="success")
    dag.tried("train", 2, 3, 62)
    train = of(dag.refresh()[1], "train")
    assert len(train.tries) == 1
    assert train.tries[0].code_start_ns == 4 * SECOND
    assert train.tries[0].deferred_ns == 54 * SECOND and train.tries[0].run_ns == 4 * SECOND


def test_without_rest_the_report_says_so(dag: Dag) -> None:
    dag.run("check_schema", 2, 10)
    refresh = dag.refresh(now=20)[1]
    assert any("dag_run" in line for line in refresh.degraded)
    assert any("no stamps of Airflow" in line for line in refresh.degraded)


def test_operator_killed_before_its_end_stamp(dag: Dag) -> None:
    """A worker that died leaves no task_end: Airflow's own end is all there is."""
    dag.dag_run(0, 400)
    dag.stamp("train", 4, "task_code_start", try_number=1)
    dag.tried("train", 2, 3, 310, state="failed")
    dag.run("train", 322, 390, try_number=2)
    dag.tried("train", 320, 321, 390, try_number=2)
    one, two = of(dag.refresh()[1], "train").tries
    assert one.wasted_ns == 306 * SECOND and two.retry_wait_ns == 10 * SECOND


def test_live_refresh_runs_to_now(dag: Dag) -> None:
    dag.dag_run(0, None, state="running")
    dag.run("check_schema", 2, 10)
    dag.tried("check_schema", 0, 1, 10)
    dag.stamp("launch", 12, "task_code_start", try_number=1)
    dag.tried("launch", 10, 11, None, state="running")
    refresh = dag.refresh(now=50)[1]
    assert refresh.wall_ns == 50 * SECOND and refresh.state == "running"
    assert of(refresh, "launch").tries[0].run_ns == 38 * SECOND


def test_refresh_that_never_submitted_a_job(dag: Dag) -> None:
    dag.dag_run(0, 12, state="failed")
    dag.run("check_schema", 2, 10, outcome="failed")
    dag.tried("check_schema", 0, 1, 12, state="failed")
    report, refresh = dag.refresh(now=20)
    assert report is None and refresh.state == "failed"
    assert of(refresh, "check_schema").tries[0].wasted_ns == 8 * SECOND


def test_a_task_that_was_not_reached_yet_is_no_task_of_the_report(dag: Dag) -> None:
    """Airflow lists it as try 0 without stamps."""
    dag.dag_run(0, None, state="running")
    dag.run("check_schema", 2, 10)
    dag.tried("check_schema", 0, 1, 10)
    empty = {"task": "report", "try_number": 0, "state": None, "scheduled": None, "queued": None}
    dag.rest.append(("task_try", {**empty, "start": None, "end": None}))
    assert dag.refresh(now=20)[1].task("report") is None


def test_the_run_is_over_when_its_report_is(dag: Dag) -> None:
    """REST was read while the last task was still at work."""
    dag.dag_run(0, None, state="running")
    dag.run("report", 2, 10)
    dag.tried("report", 0, 1, None, state="running")
    refresh = dag.refresh(now=500)[1]
    assert refresh.state == "success" and refresh.wall_ns == 10 * SECOND
