"""Bad data ends a refresh at check_schema, names what is wrong, and costs no training job."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
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


def write_other_types(partition: Path) -> None:
    """Integers of another width, some missing, and a list of integers where the contract has a number."""
    path = partition / "part-0.parquet"
    table = pq.read_table(path)
    narrow = pa.array([None, *table["department_id"].to_pylist()[1:]], pa.int32())
    lists = pa.array([[value] for value in range(table.num_rows)], pa.list_(pa.int64()))
    for name, array in (("department_id", narrow), ("product_id", lists)):
        table = table.set_column(table.schema.get_field_index(name), name, array)
    pq.write_table(table, path, row_group_size=16_384)
    _say_its_size(partition)


def _say_its_size(partition: Path) -> None:
    """The fault is in the file alone: its marker is as a writer would have left it."""
    marker = partition / "_LANDED.json"
    content = json.loads(marker.read_text())
    content["files"][0]["size"] = (partition / "part-0.parquet").stat().st_size
    marker.write_text(json.dumps(content))


def red_at_check_schema(run: Refresh) -> str:
    """The task's message, of a run that has cost no training job."""
    assert run.ended() == "failed"
    tasks = run.tasks()
    assert (tasks["check_schema"], tasks["launch"], tasks["train"]) == ("failed", "upstream_failed", "upstream_failed")
    assert tasks["ett"] == "skipped"
    assert run.attempts("train") == []
    assert len(run.attempts("check_schema")) == 1, "bad data was retried"
    message = str(run.message("check_schema"))
    assert f"day={date.fromisoformat(day(0))}" in message
    return message


@pytest.mark.parametrize(("hurt", "named"), [(rename_a_column, "visits"), (truncate, "part-0.parquet")])
def test_p29_bad_data_fails_the_task_that_names_it(
    hurt: Callable[[Path], None], named: str, partition: Path, refresh: Callable[..., Refresh]
) -> None:
    hurt(partition)
    assert named in red_at_check_schema(refresh(f"bad-{hurt.__name__}", window_start=day(0)))


def test_p30_types_are_compared_as_arrow_types_of_the_footer(partition: Path, refresh: Callable[..., Refresh]) -> None:
    write_other_types(partition)
    run = refresh("other-types", window_start=day(0))
    red_at_check_schema(run)
    findings = json.loads(run.folder.schema_report_path.read_text())["findings"]
    types = {each["column"]: each for each in findings if each["rule"] == "column_type"}
    told = {column: (each["expected"], each["observed"]) for column, each in types.items()}
    assert told["department_id"] == ("int64", "int32")
    assert told["product_id"][0] == "int64"
    assert told["product_id"][1].startswith("list<")
    assert {each["layer"] for each in types.values()} == {"footer"}
