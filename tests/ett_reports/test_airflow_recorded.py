"""Section 12 on stamps that Airflow 3.3.2 and its operators really wrote, seconds since the run was queued.

Three runs on a slow machine. `schema_fails`: the first call to a cold API server takes 22 s, both tries of
check_schema fail. `publish_fails`: every task but the last two defers; launch is retried although its code succeeded,
publish fails twice. `pokes`: a sensor in reschedule mode that is content at its third poke. An operator's stamps come
from the process that wrote them: each resume and each poke is a new one. REST was read by `ett` and again by `report`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ett_reports.events import Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.report import RefreshReport, TaskTry
from ett_reports.tasks import reduce_refresh
from ett_reports.timeline import TimelineError
from tests.ett_reports.story import EPOCH_NS, Story, ns

START, DEFER, RESUME, END = "task_code_start", "task_defer", "task_resume", "task_end"

Operator = tuple[str, int, tuple[tuple[str, float], ...], str]
"""Task, try, stamps, outcome."""
Rest = tuple[str, int, str | None, float | None, float | None, float | None, float | None]
"""Task, try, state, scheduled, queued, start, end."""

SCHEMA_FAILS: tuple[tuple[Operator, ...], tuple[Rest, ...]] = (
    (
        ("check_schema", 1, ((START, 23.315), (END, 23.717)), "failed"),
        ("check_schema", 2, ((START, 26.152), (END, 26.375)), "failed"),
        ("ett", 1, ((START, 34.453), (END, 34.501)), "skipped"),
    ),
    (
        ("check_schema", 1, "failed", 0.592, 0.639, 1.195, 23.724),
        ("check_schema", 2, "failed", 25.740, 25.766, 26.009, 31.388),
        ("launch", 0, "upstream_failed", None, None, 31.888, 31.888),
        ("train", 0, "upstream_failed", None, None, 32.582, 32.582),
        ("publish", 0, "upstream_failed", None, None, 33.192, 33.192),
        ("ett", 1, "skipped", 33.780, 33.820, 34.226, 34.523),
    ),
)
PUBLISH_FAILS: tuple[tuple[Operator, ...], tuple[Rest, ...]] = (
    (
        ("check_schema", 1, ((START, 17.202), (DEFER, 17.774), (RESUME, 51.212), (END, 51.236)), "success"),
        ("launch", 1, ((START, 53.244), (DEFER, 54.194), (RESUME, 60.027), (END, 60.182)), "success"),
        ("launch", 2, ((START, 64.176), (END, 64.366)), "success"),
        ("train", 1, ((START, 66.098), (DEFER, 66.335), (RESUME, 159.562), (END, 159.579)), "success"),
        ("publish", 1, ((START, 160.487), (DEFER, 160.959), (RESUME, 164.060), (END, 164.088)), "failed"),
        ("publish", 2, ((START, 168.342), (DEFER, 169.099), (RESUME, 172.025), (END, 172.043)), "failed"),
        ("ett", 1, ((START, 178.914), (END, 180.569)), "success"),
    ),
    (
        ("check_schema", 1, "success", 49.538, 50.031, 0.710, 51.821),
        ("launch", 1, "failed", 56.645, 57.100, 52.729, 60.269),
        ("launch", 2, "success", 62.672, 62.765, 63.046, 64.474),
        ("train", 1, "success", 159.135, 159.238, 65.284, 159.599),
        ("publish", 1, "failed", 163.160, 163.616, 160.292, 164.094),
        ("publish", 2, "failed", 171.191, 171.775, 167.752, 177.057),
        ("ett", 1, "success", 177.871, 177.950, 178.111, 180.690),
        ("report", 0, None, None, None, None, None),
    ),
)

POKES: tuple[tuple[Operator, ...], tuple[Rest, ...]] = (
    (("ett", 1, ((START, 9.845), (START, 18.975), (START, 27.671), (END, 27.672)), "success"),),
    (("ett", 1, "success", 27.457, 27.478, 27.511, 27.672),),
)


def told(folder: Path, recorded: tuple[tuple[Operator, ...], tuple[Rest, ...]]) -> RefreshReport:
    story = Story(folder / "events")
    for task, number, stamps, outcome in recorded[0]:
        operator = None
        for name, at in stamps:
            if operator is None or name in (START, RESUME):
                process = f"airflow-{task}-t{number}-{round(at * 1000)}"
                operator = story.process(Source.AIRFLOW, process, start=at, host="airflow")
            end: dict[str, Any] = {"outcome": outcome} if name == END else {}
            operator.at(at).point(name, task=task, try_number=number, **end)
    for reading in ("ett", "report"):
        rest = story.process(Source.AIRFLOW, f"airflow-rest-{reading}", start=200, host="airflow")
        rest.point("dag_run", state="running", run_type="manual", queued=EPOCH_NS, start=EPOCH_NS + ns(0.4), end=None)
        for task, number, state, *instants in recorded[1]:
            unix = [None if at is None else EPOCH_NS + ns(at) for at in instants]
            named = dict(zip(("scheduled", "queued", "start", "end"), unix, strict=True))
            rest.point("task_try", task=task, try_number=number, state=state, **named)
    log = read_log(story.folder)
    with pytest.raises(TimelineError):  # the job's own events are not part of the record
        reduce(log)
    refresh = reduce_refresh(log, None, EPOCH_NS + ns(200))
    assert refresh is not None
    return refresh


@pytest.fixture
def schema_fails(tmp_path: Path) -> RefreshReport:
    return told(tmp_path, SCHEMA_FAILS)


@pytest.fixture
def publish_fails(tmp_path: Path) -> RefreshReport:
    return told(tmp_path, PUBLISH_FAILS)


def tried(refresh: RefreshReport, task: str, number: int = 1) -> TaskTry:
    report = refresh.task(task)
    assert report is not None
    return next(one for one in report.tries if one.number == number)


def test_trap_1_cold_first_call_is_queue_not_run(schema_fails: RefreshReport) -> None:
    """start_date says 1.195; the code began at 23.315."""
    cold = tried(schema_fails, "check_schema")
    assert cold.queue_ns == ns(23.315 - 0.592) and cold.run_ns == cold.wasted_ns == ns(0.402)
    assert {"start", "end"} <= set(cold.overridden) and cold.provenance == "measured"


def test_trap_2_failed_try_ends_when_its_code_does(schema_fails: RefreshReport, publish_fails: RefreshReport) -> None:
    """Airflow's ends are 31.388 and 177.057: five seconds late, both."""
    for failed, end in (
        (tried(schema_fails, "check_schema", 2), 26.375),
        (tried(publish_fails, "publish", 2), 172.043),
    ):
        assert failed.end_ns == ns(end) and "end" in failed.overridden
        assert failed.wasted_ns == ns(end) - (failed.code_start_ns or 0)


def test_trap_3_deferral_leaves_no_negative_queue(publish_fails: RefreshReport) -> None:
    """train was scheduled at 159.135 by Airflow's word, 93 s after its code began."""
    train = tried(publish_fails, "train")
    assert "scheduled" in train.overridden and train.provenance == "estimated"
    assert train.ready_ns == ns(64.366) and train.queue_ns == ns(66.098 - 64.366)  # ready when launch ended
    assert train.deferred_ns == ns(159.562 - 66.335) and train.run_ns == ns(66.335 - 66.098 + 159.579 - 159.562)
    every = [one for task in publish_fails.tasks for one in task.tries]
    assert all(one.queue_ns >= 0 and one.run_ns >= 0 and one.retry_wait_ns >= 0 for one in every)


def test_trap_1_and_3_together_on_the_runs_first_task(publish_fails: RefreshReport) -> None:
    first = tried(publish_fails, "check_schema")
    assert first.ready_ns == 0 and first.queue_ns == ns(17.202) and first.deferred_ns == ns(51.212 - 17.774)


def test_trap_4_a_rescheduled_sensor_began_with_its_first_poke(tmp_path: Path) -> None:
    """Airflow shows the last of three pokes: 0.2 s of work, queued for 0.03 s."""
    sensor = tried(told(tmp_path, POKES), "ett")
    assert sensor.code_start_ns == ns(9.845) and sensor.run_ns == ns(27.672 - 9.845)
    assert sensor.queue_ns == ns(9.845) and "start" in sensor.overridden


def test_trap_5_every_poke_and_every_resume_is_the_same_try(tmp_path: Path, publish_fails: RefreshReport) -> None:
    """`running` fires three times for the sensor, twice for a deferred task."""
    sensor = told(tmp_path / "sensor", POKES).task("ett")
    train = publish_fails.task("train")
    assert sensor is not None and len(sensor.tries) == 1 and train is not None and len(train.tries) == 1


def test_trap_5_a_resume_in_another_process_is_the_same_try(publish_fails: RefreshReport) -> None:
    launch = publish_fails.task("launch")
    assert launch is not None and [one.number for one in launch.tries] == [1, 2]
    assert launch.tries[0].code_start_ns == ns(53.244) and launch.tries[0].deferred_ns == ns(60.027 - 54.194)


def test_a_try_that_airflow_failed_after_its_code_succeeded_is_wasted(publish_fails: RefreshReport) -> None:
    """The operator's word is good for instants; whether a try counts, Airflow decides: it ran another one."""
    first = tried(publish_fails, "launch")
    assert first.state == "failed" and first.wasted_ns == ns(60.182 - 53.244)
    second = tried(publish_fails, "launch", 2)
    # Not deferred, so Airflow's own stamp of its readiness is left.
    assert second.retry_wait_ns == ns(62.672 - 60.182) and second.queue_ns == ns(64.176 - 62.672)


def test_tasks_that_never_ran_are_not_degraded(schema_fails: RefreshReport) -> None:
    """Airflow stamps start and end of an upstream_failed task, and there is nobody who could have written more."""
    assert schema_fails.degraded == ()
    launch = tried(schema_fails, "launch", 0)
    assert launch.state == "upstream_failed" and launch.run_ns == launch.wasted_ns == 0


def test_a_task_not_reached_yet_is_no_task(publish_fails: RefreshReport) -> None:
    assert publish_fails.task("report") is None and publish_fails.degraded == ()
