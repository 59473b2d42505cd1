"""Operators without an Airflow server: a private home, Airflow's context as a value, jobs that are a few lines long."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Airflow reads these once, when it is imported first.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "WARNING")

REPOSITORY = Path(__file__).parents[2]
SPEC_PATH = REPOSITORY / "tests" / "e2e" / "refreshes" / "tiny.yaml"
JOB_MODULES = REPOSITORY / "tests" / "launch" / "modules"
PATIENCE_S = 30.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private ETT_HOME whose jobs are ended with the test."""
    from trainer.launch.__main__ import main as terminal

    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(JOB_MODULES), str(REPOSITORY)]))
    yield tmp_path
    terminal(["cancel", "--all"])


@pytest.fixture
def outside_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test call `execute` itself."""
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)


def context_of(
    run_id: str = "by-hand",
    *,
    try_number: int = 1,
    run_type: str = "manual",
    day: datetime | None = None,
    params: dict[str, Any] | None = None,
) -> Any:
    """What Airflow hands to a task of DAG `tiny`; `day` is the start of its daily data interval."""
    dag_run = SimpleNamespace(
        run_id=run_id,
        run_type=run_type,
        data_interval_start=day,
        data_interval_end=day + timedelta(days=1) if day else None,
    )
    return {
        "dag": SimpleNamespace(dag_id="tiny"),
        "dag_run": dag_run,
        "run_id": run_id,
        "ti": TaskInstance(try_number),
        "params": params or {},
        "outlet_events": defaultdict(lambda: SimpleNamespace(extra=None)),
    }


class TaskInstance:
    """A try, as far as operators ask it; `pushed` are its XComs, `earlier_run` an active run of an earlier day."""

    earlier_run: str | None = None

    def __init__(self, try_number: int) -> None:
        self.try_number = try_number
        self.max_tries = 3
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))

    def get_previous_dagrun(self, state: str) -> Any:
        assert state == "running"
        return SimpleNamespace(run_id=self.earlier_run) if self.earlier_run else None


class Said(list[str]):
    """A logger that keeps what an operator or a trigger says; Airflow's own does not pass through pytest's."""

    def info(self, message: str, *values: object) -> None:
        self.append(message % values)

    warning = error = info


def at_three(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, 3, tzinfo=UTC)


def wait_until(condition: Callable[[], object], complaint: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, complaint
        time.sleep(0.02)
