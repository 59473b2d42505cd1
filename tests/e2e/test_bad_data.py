"""Bad data ends a refresh at check_schema, names what is wrong, and costs no training job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import RealAirflow, Refresh, day

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def partition(airflow: RealAirflow) -> Iterator[Path]:
    """The newest day, put back as it was afterwards."""
    folder = airflow.home / "data" / "tiny" / f"day={day(0)}"
    kept = airflow.home / "kept"
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


def rename_a_column(partition: Path) -> None:
    path = partition / "part-0.parquet"
    table = pq.read_table(path)
    names = ["visit_count" if name == "visits" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), path, row_group_size=16_384)
    _say_its_size(partition)


def truncate(partition: Path) -> None:
    path = partition / "part-0.parquet"
    path.write_bytes(path.read_bytes()[:-2000])
    _say_its_size(partition)


def _say_its_size(partition: Path) -> None:
    """The fault is in the file alone: its marker is as a writer would have left it."""
    marker = partition / "_LANDED.json"
    content = json.loads(marker.read_text())
    content["files"][0]["size"] = (partition / "part-0.parquet").stat().st_size
    marker.write_text(json.dumps(content))


@pytest.mark.parametrize(("hurt", "named"), [(rename_a_column, "visits"), (truncate, "part-0.parquet")])
def test_the_run_is_red_at_check_schema(
    hurt: Callable[[Path], None], named: str, partition: Path, refresh: Callable[..., Refresh]
) -> None:
    hurt(partition)
    run = refresh(f"bad-{hurt.__name__}", window_start=day(0))
    assert run.ended() == "failed"
    tasks = run.tasks()
    assert (tasks["check_schema"], tasks["launch"], tasks["train"]) == ("failed", "upstream_failed", "upstream_failed")
    assert tasks["ett"] == "skipped"
    message = run.message("check_schema")
    assert named in message
    assert f"day={date.fromisoformat(day(0))}" in message
    assert run.attempts("train") == []
    assert len(run.attempts("check_schema")) == 1, "bad data was retried"
