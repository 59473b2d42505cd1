"""The DAG file: what it costs to parse, what it builds, and what a broken spec does to the others."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.plugins.conftest import REPOSITORY, SPEC_PATH

HEAVY = ("torch", "torchrec", "fbgemm_gpu", "pandas", "great_expectations", "pyarrow", "numpy", "torchx")


def parsed(script: str, specs: Path, home: Path, **variables: str) -> str:
    """What `script` prints in a process that has parsed the DAG file as `bag`."""
    prologue = """
        import sys, time
        from airflow.dag_processing.dagbag import DagBag
        from airflow.serialization.serialized_objects import DagSerialization
        loaded = set(sys.modules)
        began = time.process_time()
        bag = DagBag(dag_folder=FOLDER)
        took = time.process_time() - began
        """.replace("FOLDER", repr(str(REPOSITORY / "dags")))
    environment = {
        **os.environ,
        "ETT_HOME": str(home),
        "ETT_SPECS": str(specs),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        **variables,
    }
    code = textwrap.dedent(prologue) + textwrap.dedent(script)
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_parsing_all_specs_takes_under_a_second_and_imports_nothing_heavy(home: Path) -> None:
    printed = parsed(
        f"""
        assert not bag.import_errors, bag.import_errors
        print("took", took)
        print("heavy", [name for name in {HEAVY} if name in sys.modules and name not in loaded])
        """,
        REPOSITORY / "dags" / "refreshes",
        home,
    )
    took = float(printed.split("took ")[1].split()[0])
    assert took < 1.0, f"parsing took {took:.2f} s of CPU time"
    assert "heavy []" in printed


def test_the_triggerer_and_the_plugin_import_nothing_heavy(home: Path) -> None:
    code = f"import sys; import ett_airflow.follow, ett_plugin; print([n for n in {HEAVY} if n in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_refresh_is_six_tasks_each_with_retries_of_its_own(home: Path) -> None:
    printed = parsed(
        """
        dag = bag.dags["tiny"]
        for task in dag.topological_sort():
            print(task.task_id, task.retries, task.retry_delay.total_seconds(), task.retry_exponential_backoff,
                  bool(task.retry_policy), sorted(task.downstream_task_ids))
        print(dag.timetable.__class__.__name__, dag.catchup, dag.max_active_runs, sorted(dag.tags))
        print("| scheduling | capacity | capacity@example.com |" in dag.doc_md)
        """,
        SPEC_PATH.parent,
        home,
    )
    assert printed.splitlines()[-8:] == [
        "check_schema 1 2.0 2 True ['launch']",
        "launch 1 2.0 2 True ['train']",
        "train 3 2.0 2 True ['publish']",
        "publish 1 2.0 3 True ['ett']",
        "ett 2 1.0 1.5 True ['report']",
        "report 1 1.0 1.5 True []",
        "CatchUpTimetable True 1 ['capacity', 'feature-engineering', 'local', 'refresh']",
        "True",
    ]


def test_the_schedule_can_be_switched_off(home: Path) -> None:
    printed = parsed("print(bag.dags['tiny'].timetable)", SPEC_PATH.parent, home, ETT_SCHEDULE="off")
    assert "NullTimetable" in printed


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A good spec, and one with a misspelt field on a line of its own."""
    folder = tmp_path / "refreshes"
    folder.mkdir()
    good = SPEC_PATH.read_text()
    (folder / "good.yaml").write_text(good.replace("name: tiny", "name: good"))
    (folder / "bad.yaml").write_text(
        good.replace("name: tiny", "name: bad").replace("first_window_days:", "first_windows:")
    )
    return folder


def test_a_broken_spec_is_an_import_error_of_its_own_file(home: Path, specs: Path) -> None:
    printed = parsed(
        """
        from airflow.dag_processing.processor import _serialize_dags
        import structlog
        serialized, errors = _serialize_dags(bag, structlog.get_logger())
        print("GOOD", [dag.dag_id for dag in serialized], bag.import_errors)
        for path, message in errors.items():
            print("ERROR", path, message)
        """,
        specs,
        home,
    )
    (serialized,) = (line for line in printed.splitlines() if line.startswith("GOOD "))
    assert "'good'" in serialized
    assert "bad" not in serialized
    assert serialized.endswith(" {}")
    error = printed.split("ERROR ")[-1]
    line = 1 + (specs / "bad.yaml").read_text().splitlines().index("  first_windows: 2")
    assert error.startswith("refreshes/bad.yaml ")
    assert f"bad.yaml:{line}: data.first_windows:" in error


def test_a_task_s_start_builds_only_its_own_dag(home: Path, specs: Path) -> None:
    printed = parsed("print('DAGS', sorted(bag.dags))", specs, home, _AIRFLOW_PARSING_CONTEXT_DAG_ID="good")
    assert "'good'" in printed
    assert "'bad'" not in printed
