"""The refresh spec: what is accepted, and that every fault is told with its file, line and field."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from trainer.spec import (
    Preset,
    RunInfo,
    RunSpec,
    SpecError,
    Technique,
    Window,
    dump_run_spec,
    load_run_spec,
    load_spec,
    with_overrides,
)

VALID = """\
version: 1
name: shop
data:
  root: shop
contract:
  columns:
    - {name: label, type: float32, role: label}
    - {name: event_time, type: "timestamp[us, tz=UTC]", role: event_time}
    - {name: user_id, type: int64, role: entity}
    - {name: age, type: float32, role: dense, min: 0, max: 400, transform: log1p}
    - {name: product_id, type: int64, role: categorical, num_embeddings: 500, hashing: splitmix64}
    - {name: recent, type: "list<element: int64 not null>", role: jagged, num_embeddings: 500, hashing: splitmix64,
       max_length: 20, table: product_id}
model:
  embedding_dim: 16
  dense_arch: [64, 16]
  over_arch: [128, 64]
training: {batch_size: 512, dense_learning_rate: 2e-3}
owners: {scheduling: {team: capacity}}
service_levels: {scheduling: {share: 0.1}}
optimizations: {preset: baseline, artifact_cache: true}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(write(folder, text))
    return [f"{problem.line} {problem.field}: {problem.message}" for problem in caught.value.problems]


def test_a_valid_spec_is_typed(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, VALID))
    assert spec.training.dense_learning_rate == 0.002  # YAML 1.1 reads `2e-3` as text
    assert [column.name for column in spec.contract.sparse] == ["product_id", "recent"]
    assert spec.contract.jagged[0].table_name == "product_id"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version: 1", "version: 2", "1 version: is 2; this release reads version 1"),
        ("name: shop", "name: shop\nname: again", "3 name: is given twice (first on line 2)"),
        ("role: dense", "role: dence", "10 contract.columns[3].role: 'dence' is not one of label"),
        ("max: 400", "max: -1", "10 contract.columns[3]: min 0 is above max -1"),
        ("batch_size: 512", "batch_size: many", "18 training.batch_size: input should be a valid integer, got 'many'"),
        ("{share: 0.1}", "{share: 2}", "20 service_levels.scheduling.share: input should be less than or equal to 1"),
        ("{share: 0.1}", "{share: 0.1, seconds: 3}", "20 service_levels.scheduling: give either `share`"),
        (
            "artifact_cache",
            "artifact_cash",
            "21 optimizations.artifact_cash: is not a field of this section; did you mean",
        ),
        ("preset: baseline", "preset: fastest", "21 optimizations.preset: 'fastest' is not one of baseline, optimized"),
        ("table: product_id", "table: products", "5 contract: recent: table 'products' is not a sparse column"),
        ("  root: shop", "  rooot: shop", "3 data.root: is required and missing"),
        ("dense_arch: [64, 16]", "dense_arch: [64, 8]", "14 model: dense_arch must end in embedding_dim (16)"),
        ("data:\n", "data: [\n", "5 : is not valid YAML"),
    ],
)
def test_a_fault_names_line_and_field(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in VALID
    found = problems(tmp_path, VALID.replace(old, new, 1))
    assert any(text.startswith(expected) for text in found), found


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    text = VALID.replace("batch_size: 512", "batch_size: 0").replace("team: capacity", "teem: capacity")
    assert len(problems(tmp_path, text)) == 3  # the batch size, the team missing, the unknown field


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe"])
def test_what_is_no_spec_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "shop.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"must be a mapping|not UTF-8"):
        load_spec(path)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_spec(tmp_path / "missing.yaml")


def test_a_switch_overrides_the_preset(tmp_path: Path) -> None:
    optimizations = load_spec(write(tmp_path, VALID)).optimizations
    assert optimizations.preset is Preset.BASELINE
    assert optimizations.enabled(Technique.ARTIFACT_CACHE)
    assert not optimizations.enabled(Technique.ASYNC_CHECKPOINT)
    assert set(optimizations.resolved()) == set(Technique)


def test_a_resolved_spec_survives_the_run_folder(tmp_path: Path) -> None:
    window = Window(start=date(2026, 1, 1), end=date(2026, 1, 2))
    run = RunSpec(refresh=load_spec(write(tmp_path, VALID)), run=RunInfo(run="r1", window=window))
    dump_run_spec(run, tmp_path / "spec.yaml")
    assert load_run_spec(tmp_path / "spec.yaml") == run
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_parameters_of_a_run_are_validated_and_cannot_name_code(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, VALID))
    assert with_overrides(spec, {"training": {"batch_size": 64}}).training.batch_size == 64
    with pytest.raises(SpecError, match=r"training\.batch_size"):
        with_overrides(spec, {"training": {"batch_size": 0}})
    with pytest.raises(SpecError, match="named in the spec file only"):
        with_overrides(spec, {"model": {"factory": "os:system"}})


def test_the_checker_reports_and_exits_by_outcome(tmp_path: Path) -> None:
    good, bad = write(tmp_path, VALID), tmp_path / "bad.yaml"
    bad.write_text(VALID.replace("version: 1", "version: 3"))
    command = [sys.executable, "-m", "trainer.spec"]
    assert subprocess.run([*command, "check", good], check=False).returncode == 0
    outcome = subprocess.run([*command, "check", good, bad], capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert f"{bad}:1: version:" in outcome.stderr
    assert subprocess.run([*command], capture_output=True, check=False).returncode == 2


def test_importing_the_spec_loads_nothing_heavy() -> None:
    heavy = "torch torchrec airflow pandas pyarrow great_expectations"
    code = f"import sys, trainer.spec, trainer.run_folder; print([m for m in {heavy.split()!r} if m in sys.modules])"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "[]"
