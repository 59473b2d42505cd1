"""The schema check: every way of breaking a day is found, and named by file, column and rule."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import broken_files as broken
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feature_log import NEWEST, ROWS_PER_DAY

from trainer.dpp import check as check_module
from trainer.dpp.check import DATA_ERROR, check
from trainer.dpp.contract import arrow_schema
from trainer.dpp.expectations import Judge, between, equal, not_null
from trainer.dpp.findings import Rule, SchemaReport
from trainer.dpp.footers import read_facts
from trainer.dpp.hashing import HoldoutRule
from trainer.dpp.partitions import land
from trainer.dpp.plan import ReadPlan
from trainer.dpp.rules import sample_findings
from trainer.dpp.scan import keeps_schema, scan_file
from trainer.dpp.sources.generated import Generator
from trainer.run_folder import HOME_VARIABLE, RunFolder
from trainer.spec import Contract, RefreshSpec, RunInfo, RunSpec, Window, dump_run_spec

F32 = pa.float32()

CASES: dict[str, tuple[broken.Breakage, Rule, str | None]] = {
    "renamed column": (broken.with_schema(broken.renamed), Rule.COLUMN_MISSING, "price"),
    "renamed column, its new name": (broken.with_schema(broken.renamed), Rule.COLUMN_EXTRA, "cost"),
    "missing column": (broken.with_schema(lambda t: t.drop_columns(["shelf"])), Rule.COLUMN_MISSING, "shelf"),
    "extra column": (broken.with_schema(broken.extended), Rule.COLUMN_EXTRA, "coupon"),
    "reordered columns": (broken.with_schema(broken.reordered), Rule.COLUMN_ORDER, "price"),
    "duplicate column": (broken.with_schema(broken.duplicated), Rule.COLUMN_DUPLICATE, "price"),
    "float64 for float32": (broken.with_column("price", lambda v: v.cast(pa.float64())), Rule.COLUMN_TYPE, "price"),
    "int32 for int64": (broken.with_column("shelf", lambda v: v.cast(pa.int32())), Rule.COLUMN_TYPE, "shelf"),
    "milliseconds for microseconds": (
        broken.with_column("event_time", lambda v: v.cast(pa.timestamp("ms", "UTC"), safe=False)),
        Rule.COLUMN_TYPE,
        "event_time",
    ),
    "an id for a list of ids": (
        broken.with_column("shelves", lambda v: pa.array(np.zeros(len(v), dtype=np.int64))),
        Rule.COLUMN_TYPE,
        "shelves",
    ),
    "nullable column": (
        broken.with_column("price", lambda v: v, pa.field("price", F32, nullable=True)),
        Rule.NOT_NULLABLE,
        "price",
    ),
    "nullable integers with nulls": (
        broken.with_column(
            "shelf", lambda v: pa.array([None, *v.to_pylist()[1:]], pa.int64()), pa.field("shelf", pa.int64())
        ),
        Rule.NO_NULLS,
        "shelf",
    ),
    "nested nulls": (
        broken.lists_of(lambda lists: [[None], *lists[1:]], broken.NULLABLE_ELEMENTS),
        Rule.COLUMN_TYPE,
        "shelves",
    ),
    "below its minimum": (broken.with_value("age", -1.0), Rule.MINIMUM, "age"),
    "above its maximum": (broken.with_value("age", 401.0), Rule.MAXIMUM, "age"),
    "label out of range": (broken.with_value("label", 2.0), Rule.MAXIMUM, "label"),
    "NaN": (broken.with_value("price", np.nan, row=200), Rule.FINITE, "price"),
    "NaN everywhere": (
        broken.with_column("price", lambda v: pa.array(np.full(len(v), np.nan), F32)), Rule.FINITE, "price",
    ),
    "infinity": (broken.with_value("price", np.inf), Rule.FINITE, "price"),
    "negative infinity": (broken.with_value("price", -np.inf), Rule.FINITE, "price"),
    "id beyond its table": (broken.with_value("shelf", 50), Rule.MAXIMUM, "shelf"),
    "negative id": (broken.with_value("product", -1), Rule.MINIMUM, "product"),
    "id in a list beyond its table": (broken.lists_of(lambda lists: [[50], *lists[1:]]), Rule.MAXIMUM, "shelves"),
    "overlong list": (broken.lists_of(lambda lists: [[1] * 5, *lists[1:]]), Rule.LIST_LENGTH, "shelves"),
    "yesterday's events": (
        broken.with_column(
            "event_time", lambda v: pa.array(v.cast(pa.int64()).to_numpy() - 86_400_000_000).cast(v.type)
        ),
        Rule.MINIMUM,
        "event_time",
    ),
    "truncated file": (broken.truncated, Rule.READABLE, None),
    "empty file": (broken.emptied, Rule.READABLE, None),
    "corrupt file": (broken.overwritten, Rule.READABLE, None),
    "corrupt footer": (broken.corrupt_footer, Rule.READABLE, None),
    "half-written file": (broken.half_written, Rule.READABLE, None),
    "unreadable path": (broken.unreadable, Rule.READABLE, None),
    "dangling link": (broken.dangling, Rule.READABLE, None),
    "flipped byte": (broken.flipped, Rule.PAGE_CHECKSUMS, None),
    "no rows": (broken.without_rows, Rule.HAS_ROWS, None),
    "few rows": (broken.few_rows, Rule.ROWS_VS_MEDIAN, None),
    "rows lost after landing": (broken.other_rows_than_marked, Rule.MARKER_ROWS, None),
    "file added after landing": (broken.file_not_marked, Rule.MARKER_FILES, None),
    "landing marker missing": (broken.without_marker, Rule.LANDED, None),
    "landing marker damaged": (broken.damaged_marker, Rule.MARKER_READABLE, None),
    "landed for another contract": (broken.marker_of_another_contract, Rule.MARKER_CONTRACT, None),
    "missing day": (broken.without_day, Rule.LANDED, None),
}  # fmt: skip


def newest_file(root: Path) -> Path:
    return root / f"day={NEWEST}" / "part-0.parquet"


@pytest.fixture(scope="module")
def broken_days(spec: RefreshSpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], SchemaReport]:
    """A window of one broken day per case, between sound days, checked once: a check loads what takes seconds."""
    root = tmp_path_factory.mktemp("broken")
    Generator(spec.contract, rows_per_day=ROWS_PER_DAY, entities=200).land(root, NEWEST, len(CASES) + 6)
    start = NEWEST - timedelta(days=len(CASES))
    paths = {}
    for number, (name, (break_it, _, _)) in enumerate(CASES.items()):
        paths[name] = root / f"day={start + timedelta(days=number)}" / "part-0.parquet"
        break_it(paths[name])
    window = Window(start=start - timedelta(days=1), end=NEWEST + timedelta(days=1))
    report, plan = check(RunSpec(refresh=spec, run=RunInfo(run="manual-1", window=window)), root)
    assert plan is None
    return paths, report


@pytest.mark.parametrize("name", CASES)
def test_broken(name: str, broken_days: tuple[dict[str, Path], SchemaReport]) -> None:
    paths, report = broken_days
    _, rule, column = CASES[name]
    places = (str(paths[name]), str(paths[name].parent))
    findings = [finding for finding in report.findings if finding.file.startswith(places)]
    assert (rule, column) in [(finding.rule, finding.column) for finding in findings], "\n".join(map(str, findings))
    told = str(next(finding for finding in findings if (finding.rule, finding.column) == (rule, column)))
    assert all(part in told for part in (paths[name].parent.name, str(rule), column or "", "To do: "))


def test_sound_days_among_broken_ones_have_no_findings(broken_days: tuple[dict[str, Path], SchemaReport]) -> None:
    paths, report = broken_days
    folders = {str(path.parent) for path in paths.values()}
    assert not [finding for finding in report.findings if not finding.file.startswith(tuple(folders))]
    assert not [finding for finding in report.findings if finding.rule is Rule.EVALUATED]


def flips_found(path: Path, contract: Contract, count: int) -> dict[str, int]:
    """Flip one bit at a time; how often that was found, was harmless, or changed what is read without a finding."""
    random = np.random.default_rng(count)
    original, table = path.read_bytes(), pq.ParquetFile(path).read()
    outcomes = {"found": 0, "harmless": 0, "silent": 0}
    for at in random.integers(0, len(original), size=count):
        content = bytearray(original)
        content[at] ^= 1 << int(random.integers(0, 8))
        path.write_bytes(bytes(content))
        facts = read_facts(path, NEWEST)
        if not keeps_schema(facts, contract) or scan_file(facts, contract, HoldoutRule(0.1, 3)).findings:
            outcomes["found"] += 1
        else:
            read = pa.Table.from_batches(pq.ParquetFile(path).iter_batches(), schema=table.schema)
            outcomes["harmless" if read.equals(table) else "silent"] += 1
    return outcomes


def test_a_flipped_bit_anywhere_in_a_file_is_found_or_harmless(run_spec: RunSpec, root: Path) -> None:
    outcomes = flips_found(newest_file(root), run_spec.refresh.contract, 100)
    assert outcomes["silent"] == 0
    assert outcomes["found"] > 50


@pytest.mark.soak
def test_thousands_of_flipped_bits_are_found_or_harmless(run_spec: RunSpec, root: Path) -> None:
    assert flips_found(newest_file(root), run_spec.refresh.contract, 5_000)["silent"] == 0


def test_sound_days_pass_and_give_a_plan(run_spec: RunSpec, root: Path) -> None:
    report, plan = check(run_spec, root)
    assert report.passed, report.message
    assert plan is not None
    assert plan.train_rows + plan.holdout_rows == report.rows == 800
    assert [file.day for file in plan.files] == [run_spec.run.window.start, NEWEST]
    plan.verify()


def test_the_sampled_row_group_is_judged_row_by_row(run_spec: RunSpec, root: Path) -> None:
    path = newest_file(root)
    broken.with_value("price", np.nan)(path)
    broken.lists_of(lambda lists: [[], [1] * 5, [49, 50], *lists[3:]])(path)
    facts = read_facts(path, NEWEST)
    findings = sample_findings(Judge(), facts, 0, run_spec.refresh.contract)
    assert {(finding.column, finding.rule) for finding in findings} == {
        ("price", Rule.FINITE), ("shelves", Rule.LIST_LENGTH), ("shelves", Rule.MAXIMUM),
    }  # fmt: skip
    assert all("row group 0: 1 rows" in finding.observed for finding in findings)


def test_a_window_before_anything_landed_names_every_missing_day(run_spec: RunSpec, tmp_path: Path) -> None:
    report, plan = check(run_spec, tmp_path / "nowhere")
    assert plan is None
    assert [finding.rule for finding in report.findings] == [Rule.LANDED, Rule.LANDED]


def test_a_closed_day_is_not_a_missing_day(run_spec: RunSpec, root: Path) -> None:
    broken.without_day(newest_file(root))
    contract = run_spec.refresh.contract
    land(root, NEWEST, arrow_schema(contract).empty_table(), contract, source={}, closed="holiday")
    report, plan = check(run_spec, root)
    assert report.passed, report.message
    assert plan is not None and len(plan.files) == 1


def test_a_window_of_closed_days_only_has_nothing_to_train_on(run_spec: RunSpec, root: Path) -> None:
    contract = run_spec.refresh.contract
    for day in (run_spec.run.window.start, NEWEST):
        broken.without_day(root / f"day={day}" / "part-0.parquet")
        land(root, day, arrow_schema(contract).empty_table(), contract, source={}, closed="holiday")
    report, plan = check(run_spec, root)
    assert plan is None
    assert [finding.rule for finding in report.findings] == [Rule.HAS_TRAINING_ROWS]


def test_a_frame_without_rows_breaks_every_rule_instead_of_passing_all() -> None:
    assert len(Judge().judge(pd.DataFrame({"row": [], "x": []}), [between(Rule.MINIMUM, "x", 0, 1)], locate=None)) == 1


def test_columns_named_twice_are_not_judged() -> None:
    frame = pd.DataFrame([[0, 1, 2]], columns=["row", "x", "x"])
    assert Judge().judge(frame, [between(Rule.MINIMUM, "x", 0, 9)], locate=None)[0].problem == "columns are named twice"


def test_a_rule_that_cannot_be_evaluated_is_broken_and_says_why() -> None:
    frame = pd.DataFrame({"row": [0], "x": [1.0]})
    results = Judge().judge(frame, [not_null(Rule.FINITE, "y"), equal(Rule.MARKER_ROWS, "x", "z")], locate=None)
    assert len(results) == 2
    assert all(result.problem and "does not exist" in result.problem for result in results)


def run_folder(run_spec: RunSpec, tmp_path: Path) -> RunFolder:
    folder = RunFolder.of("shop", "manual-1", tmp_path / "runs").create()
    dump_run_spec(run_spec, folder.spec_path)
    return folder


def at_home(monkeypatch: pytest.MonkeyPatch, root: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "data").mkdir(parents=True)
    (tmp_path / "home" / "data" / "shop").symlink_to(root)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))


def test_the_job_writes_plan_and_report(
    run_spec: RunSpec, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, root, tmp_path)
    folder = run_folder(run_spec, tmp_path)
    assert check_module.main(["--run-folder", folder.url]) == 0
    assert ReadPlan.load(folder.plan_path).train_rows > 0
    assert json.loads(folder.schema_report_path.read_text())["passed"] is True


def test_the_job_exits_65_without_a_plan_and_tells_the_launcher_why(
    run_spec: RunSpec, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_home(monkeypatch, root, tmp_path)
    folder = run_folder(run_spec, tmp_path)
    folder.plan_path.write_text("an earlier try's plan")
    monkeypatch.setenv("ETT_ERROR_FILE", str(tmp_path / "error.json"))
    broken.with_schema(broken.renamed)(newest_file(root))
    assert check_module.main(["--run-folder", folder.url]) == DATA_ERROR == 65
    assert not folder.plan_path.exists()
    error = json.loads((tmp_path / "error.json").read_text())
    assert error["cause"] == "data"
    for text in (error["message"], capsys.readouterr().err):
        assert "column price" in text and "column_missing" in text and f"day={NEWEST}" in text
    report = json.loads(folder.schema_report_path.read_text())
    assert {"file", "column", "rule", "expected", "observed", "action"} <= set(report["findings"][0])


def test_a_run_folder_without_a_spec_is_wrong_usage(tmp_path: Path) -> None:
    assert check_module.main(["--run-folder", str(tmp_path)]) == 2


def test_importing_the_data_plane_loads_neither_torch_nor_pandas_nor_great_expectations() -> None:
    code = (
        "import sys, trainer.dpp.check, trainer.dpp.reader, trainer.dpp.cursor, trainer.dpp.plan\n"
        "print([name for name in ('torch', 'pandas', 'great_expectations', 'airflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
