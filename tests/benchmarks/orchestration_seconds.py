"""What orchestration adds to a refresh: the seconds in which neither a job nor a task's own code is at work.

    PYTHONPATH=.:plugins python tests/benchmarks/orchestration_seconds.py [--refreshes 3]

A real Airflow on a warm Postgres refreshes the tests' model day by day. From being queued to the end of the run, a
second counts as work when one of the run's jobs exists (submitted, not ended) or a task's own code runs between two
stamps; what is left is orchestration, listed by where it passes. The first refresh warms up and is left out. Exit code
1 if the median is 10 s or more.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from ett_airflow.tries import read_record

from ett_reports.events import Point
from ett_reports.reader import read_log
from tests.benchmarks.warm_airflow import WarmAirflow, warm_airflow
from tests.e2e.conftest import NEWEST, SPECS, land
from trainer.launch import JobKey, launcher_for
from trainer.run_folder import RunFolder

GOAL_S = 10.0
_BEGIN = {Point.TASK_CODE_START, Point.TASK_RESUME}
_CEASE = {Point.TASK_DEFER, Point.TASK_END}


@dataclass(frozen=True, order=True)
class Work:
    """Something of the refresh at work, Unix ns."""

    start: int
    end: int
    what: str


def refreshed(airflow: WarmAirflow, run_id: str, window_start: str) -> tuple[float, dict[str, float]]:
    """Run one refresh to its end: its wall seconds, and its seconds without work by where they pass."""
    body = {"dag_run_id": run_id, "logical_date": None, "conf": {"window_start": window_start}}
    airflow.api.post("/dags/tiny/dagRuns", body)
    while (state := airflow.api.dag_run("tiny", run_id)["state"]) not in ("success", "failed"):
        time.sleep(0.5)
    assert state == "success", f"run {run_id} ended {state}"
    record = read_record(airflow.api, "tiny", run_id)
    assert record.queued is not None
    assert record.end is not None
    folder = RunFolder.of("tiny", run_id)
    gaps = gaps_between([*jobs_of(folder), *code_of(folder)], record.queued, record.end)
    return (record.end - record.queued) / 1e9, gaps


def jobs_of(folder: RunFolder) -> list[Work]:
    launcher, found = launcher_for("local"), []
    for task in ("check_schema", "train", "publish"):
        handle = launcher.find(JobKey(refresh=folder.refresh, run=folder.run, task=task, attempt=1))
        assert handle is not None, task
        status = launcher.describe(handle)
        assert status.ended_ns is not None
        found.append(Work(status.submitted_ns, status.ended_ns, f"job {task}"))
    return found


def code_of(folder: RunFolder) -> list[Work]:
    """The tasks' own code, from the stamps of their processes."""
    found = []
    for process in read_log(folder.events_dir).processes:
        began = None
        for point in process.points:
            at = point.wall_ns or process.pairs[0][0] + point.mono_ns - process.pairs[0][1]
            if point.name in _BEGIN:
                began = at
            elif point.name in _CEASE and began is not None:
                found.append(Work(began, at, str(point.attrs["task"])))
    return found


def gaps_between(work: list[Work], start: int, end: int) -> dict[str, float]:
    """Seconds of [start, end] that no work covers, by what ended before and what began after."""
    gaps: dict[str, float] = defaultdict(float)
    covered, last = start, "queued"
    for each in sorted(work):
        if each.start > covered:
            gaps[f"{last} -> {each.what}"] += (each.start - covered) / 1e9
        if each.end > covered:
            covered, last = each.end, each.what
    gaps[f"{last} -> end of the run"] += max(0, end - covered) / 1e9
    return dict(gaps)


def main() -> int:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refreshes", type=int, default=3)
    count = parser.parse_args().refreshes
    with warm_airflow({"ETT_SPECS": str(SPECS)}) as airflow:
        land(airflow.home, days=count + 1)
        while not any(dag["dag_id"] == "tiny" for dag in airflow.api.get("/dags")["dags"]):
            time.sleep(0.3)
        airflow.api.patch("/dags/tiny", {"is_paused": False})
        measured = []
        for back in range(count, -1, -1):
            day = (NEWEST - timedelta(days=back)).isoformat()
            measured.append(refreshed(airflow, day, day))
    return tell(measured[1:])


def tell(measured: list[tuple[float, dict[str, float]]]) -> int:
    print(f"{len(measured)} refreshes on {platform.platform()}, Python {platform.python_version()}, medians\n")
    print("| where | seconds |\n| --- | ---: |")
    for where in dict.fromkeys(where for _, gaps in measured for where in gaps):
        print(f"| {where} | {statistics.median(gaps.get(where, 0.0) for _, gaps in measured):.2f} |")
    total = statistics.median(sum(gaps.values()) for _, gaps in measured)
    wall = statistics.median(wall for wall, _ in measured)
    print(f"| **all** | **{total:.2f}** of {wall:.1f} |")
    print(f"\ngoal: under {GOAL_S:.0f} s: {'met' if total < GOAL_S else 'MISSED'}")
    return 0 if total < GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
