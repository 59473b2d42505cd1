"""Scoring a file: inputs that cannot be scored are told by column and row, and leave no output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from publish_run import refresh_spec

from publish.predict import main as predict
from publish.snapshot import Anchor, write_snapshot
from trainer.checkpoint import Lineage
from trainer.model.factory import build_model


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    spec = refresh_spec()
    lineage = Lineage(refresh="movies", run="r1", window=("2026-01-09", "2026-01-10"), spec_digest="d")
    anchor = Anchor(path="/anchor", save_id="s", step=1, cursor=1)
    module = build_model(spec, device="cpu")
    write_snapshot(folder, module, version="r1", lineage=lineage, anchor=anchor, spec=spec)
    return folder


def rows(count: int = 6) -> pa.Table:
    return pa.table(
        {
            "age": pa.array(np.linspace(0, 50, count), pa.float32()),
            "item": pa.array(range(count), pa.int64()),
            "recent": pa.array([list(range(number % 4)) for number in range(count)], pa.list_(pa.int64())),
        }
    )


def replaced(name: str, array: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.names.index(name), name, array)


def test_a_file_without_label_or_entity_is_scored(snapshot: Path, tmp_path: Path) -> None:
    pq.write_table(rows(50), tmp_path / "in.parquet")
    assert predict([str(snapshot), str(tmp_path / "in.parquet"), "--out", str(tmp_path / "out.parquet")]) == 0
    scored = pq.read_table(tmp_path / "out.parquet")
    assert scored.schema.names == ["logit", "probability"]
    assert scored.num_rows == 50
    np.testing.assert_allclose(scored["probability"], 1 / (1 + np.exp(-scored["logit"].to_numpy().astype(float))))


WRONG = [
    (lambda table: table.drop_columns(["age", "item"]), "column age is missing; column item is missing"),
    (replaced("item", pa.array([1.0] * 6)), "column item has type double, the contract says int64"),
    (
        replaced("item", pa.array([0, 1, 2, 3, 4, 50], pa.int64())),
        "item holds ids from 0 to 50, its table has 50",
    ),
    (replaced("item", pa.array([0, 1, 2, 3, 4, None], pa.int64())), "column item has nulls in rows 0 to 5"),
    (replaced("recent", pa.array([[1], [None], [], [], [], []], pa.list_(pa.int64()))), "column recent has nulls"),
    (replaced("age", pa.array([1, 2, float("nan"), 4, 5, 6], pa.float32())), "column age is not finite in row 2"),
    (replaced("age", pa.array([1, 2, 3, -4, 5, 6], pa.float32())), "column age is below 0 in row 3"),
    (lambda table: table.slice(0, 0), "has no rows to score"),
]


@pytest.mark.parametrize(("damage", "message"), WRONG, ids=[message for _, message in WRONG])
def test_an_input_that_breaks_the_contract_is_told(
    snapshot: Path,
    tmp_path: Path,
    damage: Callable[[pa.Table], pa.Table],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pq.write_table(damage(rows()), tmp_path / "in.parquet")
    assert predict([str(snapshot), str(tmp_path / "in.parquet"), "--out", str(tmp_path / "out.parquet")]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert str(tmp_path / "in.parquet") in told
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_what_is_no_parquet_or_no_snapshot_is_told(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    (tmp_path / "in.parquet").write_text("label,age\n")
    assert predict([str(snapshot), str(tmp_path / "in.parquet"), "--out", str(tmp_path / "out.parquet")]) == 1
    assert "cannot be read as Parquet" in capsys.readouterr().err
    assert predict(["nothing", str(tmp_path / "in.parquet"), "--out", str(tmp_path / "out.parquet")]) == 1
    assert "no refresh that is live (known: none)" in capsys.readouterr().err
