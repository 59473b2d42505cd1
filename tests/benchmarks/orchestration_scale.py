"""500 refresh specs beside 500 plain five-task DAGs: parsing, memory, and how soon a task's code begins.

    PYTHONPATH=.:plugins python tests/benchmarks/orchestration_scale.py [--dags 500] [--repeats 5] [--starts 8]

Parsing and task start are Airflow's own functions in fresh processes, the two kinds interleaved. Then a real Airflow on
Postgres gets each kind in turn: seconds until all DAGs are known, memory of the DAG processor, and runs of different
DAGs, from `queued` to the first line of the first task's own code. Exit code 1 on any import error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ett_reports.events import Point
from ett_reports.reader import LogError, read_log
from tests.benchmarks.warm_airflow import WarmAirflow, warm_airflow
from tests.e2e.conftest import REPOSITORY, SPECS, land
from trainer.run_folder import RunFolder

PLAIN = """
import os, time
from datetime import datetime
from pathlib import Path
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, get_parsing_context

def work(name, dag_id, run_id):
    Path(os.environ["ETT_HOME"], f"began-{{dag_id}}-{{run_id}}-{{name}}").write_text(str(time.time_ns()))

for number in range({count}):
    dag_id = f"bench_{{number:03}}"
    if get_parsing_context().dag_id not in (None, dag_id):
        continue
    with DAG(dag_id, schedule="0 3 * * *" if os.environ.get("ETT_SCHEDULE") == "on" else None,
             start_date=datetime(2020, 1, 1), catchup=False, max_active_runs=1) as dag:
        tasks = [PythonOperator(task_id=name, python_callable=work,
                                op_kwargs={{"name": name, "dag_id": dag_id, "run_id": "{{{{ run_id }}}}"}})
                 for name in ("check_schema", "launch", "train", "publish", "report")]
        for before, after in zip(tasks, tasks[1:]):
            before >> after
    globals()[dag_id] = dag
"""

# What Airflow's DAG processor does with a file, and what a starting task does with it.
PROBE = """
import json, resource, sys, time
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.dag_processing.processor import _serialize_dags
import structlog
file, folder, serialize = sys.argv[1:]
wall, cpu = time.monotonic(), time.process_time()
bag = BundleDagBag(dag_folder=file, bundle_path=folder, bundle_name="dags-folder", load_op_links=False)
errors = dict(bag.import_errors)
if serialize == "serialize":
    found, failed = _serialize_dags(bag, structlog.get_logger())
    errors |= failed
print(json.dumps({"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu, "dags": len(bag.dags),
    "errors": errors, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


@dataclass
class Kind:
    """One kind of DAGs, and all that was measured of it."""

    name: str
    file: Path
    variables: dict[str, str]
    began_ns: Callable[[WarmAirflow, str, str], int | None]
    figures: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def note(self, figure: str, value: float) -> None:
        self.figures.setdefault(figure, []).append(value)

    def median(self, figure: str) -> float:
        return statistics.median(self.figures[figure])


def kinds(folder: Path, count: int) -> list[Kind]:
    specs, plain = folder / "specs", folder / "plain"
    specs.mkdir()
    plain.mkdir()
    text = (SPECS / "tiny.yaml").read_text()
    for number in range(count):
        (specs / f"bench_{number:03}.yaml").write_text(text.replace("name: tiny", f"name: bench_{number:03}"))
    (plain / "plain.py").write_text(PLAIN.format(count=count))
    dags = REPOSITORY / "dags"
    return [
        Kind("refresh", dags / "refresh.py", {"ETT_SPECS": str(specs), "ETT_DAGS": str(dags)}, _refresh_began),
        Kind("plain", plain / "plain.py", {"ETT_SPECS": str(specs), "ETT_DAGS": str(plain)}, _plain_began),
    ]


def _refresh_began(airflow: WarmAirflow, dag_id: str, run_id: str) -> int | None:
    log = read_log(RunFolder.of(dag_id, run_id).events_dir)
    stamps = [
        point.wall_ns for process in log.processes for point in process.points if point.name == Point.TASK_CODE_START
    ]
    return min((stamp for stamp in stamps if stamp is not None), default=None)


def _plain_began(airflow: WarmAirflow, dag_id: str, run_id: str) -> int | None:
    path = airflow.home / f"began-{dag_id}-{run_id}-check_schema"
    written = path.read_text() if path.exists() else ""
    return int(written) if written else None


def parse(kind: Kind, dag_id: str | None) -> None:
    """One fresh process: all DAGs as the DAG processor takes them, or one as the start of its task does."""
    environment = {**os.environ, **kind.variables, "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins")}
    mode, prefix = "serialize", "parse"
    if dag_id is not None:
        environment |= {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag_id, "_AIRFLOW_PARSING_CONTEXT_TASK_ID": "check_schema"}
        mode, prefix = "task", "task"
    command = [sys.executable, "-c", PROBE, str(kind.file), str(kind.file.parent), mode]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout.splitlines()[-1])
    kind.errors |= found["errors"]
    kind.note(f"{prefix} cpu", found["cpu"])
    kind.note(f"{prefix} wall", found["wall"])
    kind.note(f"{prefix} mib", found["mib"])
    kind.note(f"{prefix} dags", found["dags"])


def live(kind: Kind, count: int, starts: int) -> None:
    """A real Airflow with these DAGs only."""
    with warm_airflow(kind.variables) as airflow:
        land(airflow.home, days=2)
        watch_processing(kind, airflow, count)
        for number in range(starts + 1):
            delay_s = start_one(airflow, kind, f"bench_{number * (count // (starts + 1)):03}")
            if number:  # the first one warms up
                kind.note("start", delay_s)
        kind.note("scheduler mib", airflow.memory_of("scheduler"))
    told = {name: [round(value, 2) for value in values] for name, values in kind.figures.items()}
    print(f"{kind.name}: {told}\n", file=sys.stderr, flush=True)


def watch_processing(kind: Kind, airflow: WarmAirflow, count: int) -> None:
    """Until all DAGs are known and have been parsed a second time, unchanged; notes the DAG processor's peak."""
    peak, parsed, give_up = 0.0, set(), time.monotonic() + 400
    while len(parsed) < 2:
        peak = max(peak, airflow.memory_of("dag-processor"))
        page = airflow.api.get("/dags", limit=1, dag_id_pattern="bench_")
        assert time.monotonic() < give_up, f"{page['total_entries']} of {count} DAGs are known"
        if page["total_entries"] == count and page["dags"][0]["last_parsed_time"] not in parsed:
            parsed.add(page["dags"][0]["last_parsed_time"])
            kind.note("processing", page["dags"][0]["last_parse_duration"])
        time.sleep(0.2)
    kind.note("processor mib", peak)
    errors = airflow.api.get("/importErrors")["import_errors"]
    kind.errors |= {each["filename"]: each["stack_trace"] for each in errors}


def start_one(airflow: WarmAirflow, kind: Kind, dag_id: str) -> float:
    """Seconds from the first task's `queued` stamp to the first line of its own code."""
    airflow.api.patch(f"/dags/{dag_id}", {"is_paused": False})
    airflow.api.post(f"/dags/{dag_id}/dagRuns", {"dag_run_id": "bench", "logical_date": None, "conf": {}})
    give_up = time.monotonic() + 120
    while (began_ns := _began(kind, airflow, dag_id)) is None:
        assert time.monotonic() < give_up, f"{dag_id} does not start"
        time.sleep(0.1)
    tasks = {task["task_id"]: task for task in airflow.api.task_instances(dag_id, "bench")}
    queued = datetime.fromisoformat(tasks["check_schema"]["queued_when"]).timestamp()
    airflow.api.patch(f"/dags/{dag_id}/dagRuns/bench", {"state": "failed"})
    airflow.api.patch(f"/dags/{dag_id}", {"is_paused": True})
    return began_ns / 1e9 - queued


def _began(kind: Kind, airflow: WarmAirflow, dag_id: str) -> int | None:
    try:
        return kind.began_ns(airflow, dag_id, "bench")
    except (OSError, LogError):
        return None  # nothing written yet


def tell(both: list[Kind], count: int) -> None:
    """A table in Markdown, medians."""
    print(
        f"{count} DAGs of each kind, {os.cpu_count()} cores, {platform.platform()}, "
        f"Python {platform.python_version()}\n"
    )
    print("| | refresh specs | plain five-task DAGs |\n| --- | ---: | ---: |")
    rows = [
        ("parse and serialize all, CPU s", "parse cpu", 1.0, "{:.2f}"),
        ("the same per DAG, ms", "parse cpu", 1000 / count, "{:.1f}"),
        ("memory of that process, MiB", "parse mib", 1.0, "{:.0f}"),
        ("parse at the start of one task, CPU ms", "task cpu", 1000.0, "{:.0f}"),
        ("processing time as Airflow tells it, s", "processing", 1.0, "{:.2f}"),
        ("DAG processor with its children, peak of unique memory, MiB", "processor mib", 1.0, "{:.0f}"),
        ("scheduler with its children, unique memory, MiB", "scheduler mib", 1.0, "{:.0f}"),
        ("queued -> first line of the task's code, s", "start", 1.0, "{:.2f}"),
    ]
    for title, figure, factor, shape in rows:
        cells = " | ".join(shape.format(factor * kind.median(figure)) for kind in both)
        print(f"| {title} | {cells} |")
    for kind in both:
        assert set(kind.figures["parse dags"]) == {count}, kind.figures["parse dags"]
        assert set(kind.figures["task dags"]) == {1}, kind.figures["task dags"]
        print(f"\nimport errors of {kind.name}: {len(kind.errors)}")
        for file, trace in kind.errors.items():
            print(f"{file}: {trace}")


def main() -> int:
    """Exit code 1 on an import error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dags", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ett-bench-dags-") as folder:
        both = kinds(Path(folder), options.dags)
        for _ in range(options.repeats):
            for kind in both:
                parse(kind, None)
                parse(kind, "bench_007")
        for kind in both:
            live(kind, options.dags, options.starts)
    tell(both, options.dags)
    return 1 if any(kind.errors for kind in both) else 0


if __name__ == "__main__":
    sys.exit(main())
