"""The rules of the schema check: the contract turned into expectations over three frames of facts.

From cheap to dear: partitions (a row per day), footers (a row per file, and per file and column), and one sampled row
group (a row per row). The full scan in `scan` follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.dpp.contract import arrow_schema, bounds_of, contract_hash
from trainer.dpp.expectations import ROW, Broken, Expectation, Judge, at_least, between, equal, in_set, not_null
from trainer.dpp.findings import Finding, Layer, Rule
from trainer.dpp.footers import ColumnFacts, FileFacts
from trainer.dpp.inventory import PartitionFacts
from trainer.spec import Column, Contract, Role

if TYPE_CHECKING:
    import pandas as pd

_STATUS_RULES = {
    "missing": Rule.COLUMN_MISSING,
    "extra": Rule.COLUMN_EXTRA,
    "duplicate": Rule.COLUMN_DUPLICATE,
}
_SAMPLE_EXAMPLES = 3


def partition_findings(
    judge: Judge, partitions: Sequence[PartitionFacts], contract: Contract, min_rows_vs_median: float
) -> list[Finding]:
    """Days that are missing, damaged, landed for another contract, or far smaller than usual."""
    expected_contract = contract_hash(contract)
    rows = [_partition_row(partition, min_rows_vs_median) for partition in partitions]
    expectations = [
        in_set(Rule.LANDED, "landed", [True]),
        in_set(Rule.MARKER_READABLE, "marker", ["readable"]),
        in_set(Rule.MARKER_CONTRACT, "contract", [expected_contract]),
        equal(Rule.MARKER_ROWS, "rows", "marker_rows"),
        equal(Rule.MARKER_FILES, "files", "marker_files"),
        at_least(Rule.ROWS_VS_MEDIAN, "rows", "fewest_rows"),
    ]
    return _row_findings(judge, rows, expectations, Layer.PARTITION, _partition_texts)


def _partition_row(partition: PartitionFacts, min_rows_vs_median: float) -> dict[str, Any]:
    marker, usual = partition.marker, partition.usual_rows
    open_day = marker is not None and marker.closed is None
    whole = marker is not None and partition.readable
    return {
        "file": partition.folder,
        "column": None,
        "landed": marker is not None or partition.problem is not None,
        "marker": partition.problem or "readable",
        "contract": marker.contract if marker else None,
        "rows": float(partition.rows) if whole else math.nan,
        "marker_rows": float(marker.rows) if marker and whole else math.nan,
        "files": _listed(partition.found),
        "marker_files": _listed(marker.files) if marker else None,
        "usual": usual,
        "fewest_rows": usual * min_rows_vs_median if usual is not None and open_day else math.nan,
    }


def _listed(files: Iterable[Any]) -> str:
    return ", ".join(f"{file.name} ({file.size} bytes)" for file in sorted(files, key=lambda file: file.name)) or "none"


def _partition_texts(rule: Rule, row: dict[str, Any]) -> tuple[str, str]:
    found = row["rows"]
    texts = {
        Rule.LANDED: ("a landed day", "no landing marker"),
        Rule.MARKER_READABLE: ("a readable landing marker", row["marker"]),
        Rule.MARKER_CONTRACT: ("a day landed for this contract", f"contract {str(row['contract'])[:12]}"),
        Rule.MARKER_ROWS: (f"{row['marker_rows']:.0f} rows by the landing marker", f"{found:.0f} rows"),
        Rule.MARKER_FILES: (f"files by the landing marker: {row['marker_files']}", f"files: {row['files']}"),
        Rule.ROWS_VS_MEDIAN: (
            f"at least {row['fewest_rows']:.0f} rows (the median of the days before is {row['usual'] or 0:.0f})",
            f"{found:.0f} rows",
        ),
    }
    return texts[rule]


def footer_findings(judge: Judge, files: Sequence[FileFacts], contract: Contract) -> list[Finding]:
    """Files that cannot be read or are empty, and every difference between their schema and the contract."""
    if not files:
        return []
    file_rows = [
        {"file": facts.path, "column": None, "problem": facts.problem or "none", "rows": _rows_if_readable(facts)}
        for facts in files
    ]
    file_rules = [in_set(Rule.READABLE, "problem", ["none"]), between(Rule.HAS_ROWS, "rows", 1, None)]
    findings = _row_findings(judge, file_rows, file_rules, Layer.FOOTER, _file_texts)
    readable = [facts for facts in files if facts.problem is None]
    column_rows = [row for facts in readable for row in _column_rows(facts, contract)]
    if column_rows:
        findings += _row_findings(judge, column_rows, _column_rules(), Layer.FOOTER, _column_texts)
    return findings


def _rows_if_readable(facts: FileFacts) -> float:
    return math.nan if facts.problem else float(facts.rows)


def _file_texts(rule: Rule, row: dict[str, Any]) -> tuple[str, str]:
    if rule is Rule.READABLE:
        return "a readable Parquet file", row["problem"]
    return "at least one row", "0 rows"


def _column_rules() -> list[Expectation]:
    return [
        in_set(Rule.COLUMN_MISSING, "status", ["present"]),  # the rule of a finding follows its status
        equal(Rule.COLUMN_ORDER, "position", "expected_position"),
        equal(Rule.COLUMN_TYPE, "type", "expected_type"),
        in_set(Rule.NOT_NULLABLE, "nullable", ["no"]),
        between(Rule.NO_NULLS, "nulls", 0, 0),
        at_least(Rule.MINIMUM, "low", "bound_low"),
        at_least(Rule.MAXIMUM, "bound_high", "high"),
    ]


def _column_rows(facts: FileFacts, contract: Contract) -> list[dict[str, Any]]:
    """A row per column of the file or of the contract."""
    schema = arrow_schema(contract)
    names = [column.name for column in facts.columns]
    same_names = sorted(names) == sorted(schema.names)
    rows = []
    for column in contract.columns:
        found = [candidate for candidate in facts.columns if candidate.name == column.name]
        expected_type = str(schema.field(column.name).type)
        if not found:
            rows.append(_bare_row(facts, column.name, "missing", expected_type, ", ".join(names)))
        elif len(found) > 1:
            rows.append(_bare_row(facts, column.name, "duplicate", "one column", f"{len(found)} columns"))
        else:
            place = schema.get_field_index(column.name) if same_names else math.nan
            rows.append(_present_row(facts, column, found[0], expected_type, place))
    extra = [column for column in facts.columns if column.name not in schema.names]
    return [*rows, *(_bare_row(facts, column.name, "extra", "no such column", column.type) for column in extra)]


def _bare_row(facts: FileFacts, column: str, status: str, expected: str, observed: str) -> dict[str, Any]:
    """A row about which nothing but its status can be judged."""
    empty = dict.fromkeys(
        ("position", "expected_position", "nulls", "low", "high", "bound_low", "bound_high"), math.nan
    )
    texts = dict.fromkeys(("type", "expected_type", "nullable"), None)
    return {
        "file": facts.path, "column": column, "status": status, "expected": expected, "observed": observed,
        **empty, **texts,
    }  # fmt: skip


def _present_row(
    facts: FileFacts, column: Column, found: ColumnFacts, expected_type: str, place: float
) -> dict[str, Any]:
    comparable = found.type == expected_type
    bounds = bounds_of(column, facts.day) if comparable else None
    return {
        **_bare_row(facts, column.name, "present", "", ""),
        "position": float(found.position),
        "expected_position": float(place),
        "type": found.type,
        "expected_type": expected_type,
        "nullable": "yes" if found.nullable else "no",
        "nulls": math.nan if found.nulls is None else float(found.nulls),
        "low": found.low,
        "high": found.high,
        "bound_low": bounds.low if bounds else math.nan,
        "bound_high": bounds.high if bounds else math.nan,
    }


def _column_texts(rule: Rule, row: dict[str, Any]) -> tuple[str, str]:
    bounds = f"between {row['bound_low']:.16g} and {row['bound_high']:.16g}"
    texts = {
        Rule.COLUMN_MISSING: (row["expected"], f"not among: {row['observed']}"),
        Rule.COLUMN_EXTRA: (row["expected"], row["observed"]),
        Rule.COLUMN_DUPLICATE: (row["expected"], row["observed"]),
        Rule.COLUMN_ORDER: (f"position {row['expected_position']:.0f}", f"position {row['position']:.0f}"),
        Rule.COLUMN_TYPE: (row["expected_type"], row["type"]),
        Rule.NOT_NULLABLE: ("a field declared not null", "a nullable field"),
        Rule.NO_NULLS: ("no nulls", f"{row['nulls']:.0f} nulls"),
        Rule.MINIMUM: (bounds, f"minimum {row['low']:.16g}"),
        Rule.MAXIMUM: (bounds, f"maximum {row['high']:.16g}"),
        Rule.FINITE: ("finite values", f"minimum {row['low']}, maximum {row['high']}"),
    }
    return texts[rule]


def _rule_of(broken: Rule, row: dict[str, Any]) -> Rule:
    """The rule to name: a status says which one it is, and an infinity is not merely out of range."""
    if broken is Rule.COLUMN_MISSING:
        return _STATUS_RULES[row["status"]]
    infinite = broken in (Rule.MINIMUM, Rule.MAXIMUM) and math.inf in (abs(row["low"]), abs(row["high"]))
    return Rule.FINITE if infinite else broken


def _row_findings(
    judge: Judge, rows: list[dict[str, Any]], expectations: Sequence[Expectation], layer: Layer, texts: Any
) -> list[Finding]:
    """One finding for each row that breaks an expectation."""
    import pandas as pd

    frame = pd.DataFrame([{ROW: number, **row} for number, row in enumerate(rows)])
    findings = []
    for broken in judge.judge(frame, expectations, locate=None):
        if broken.problem or not broken.rows:
            findings.append(_not_evaluated(broken, rows[0]["file"], layer))
        for number in broken.rows:
            row = rows[number]
            rule = _rule_of(broken.expectation.rule, row)
            expected, observed = texts(rule, row)
            findings.append(Finding(row["file"], row["column"], rule, expected, observed, layer))
    return findings


def _not_evaluated(broken: Broken, file: str, layer: Layer) -> Finding:
    expectation = broken.expectation
    expected = f"rule {expectation.rule} to be evaluated on {expectation.arguments}"
    return Finding(file, None, Rule.EVALUATED, expected, broken.problem or "it failed without naming a row", layer)


def sample_findings(judge: Judge, facts: FileFacts, row_group: int, contract: Contract) -> list[Finding]:
    """Every rule on each row of one row group, lists by their length, minimum and maximum."""
    where = f"{facts.path}"
    try:
        table = pq.ParquetFile(Path(facts.path), page_checksum_verification=True).read_row_group(row_group)
    except (OSError, pa.ArrowException) as error:
        observed = f"row group {row_group}: {error}"
        return [Finding(where, None, Rule.READABLE, "a readable row group", observed, Layer.SAMPLE)]
    frame, column_of, expectations = _sample_frame(table, contract, facts.day)
    findings = []
    for broken in judge.judge(frame, expectations, locate=_SAMPLE_EXAMPLES):
        if broken.problem:
            findings.append(_not_evaluated(broken, where, Layer.SAMPLE))
            continue
        arguments = broken.expectation.arguments
        expected = f"between {arguments.get('min_value')} and {arguments.get('max_value')}"
        if "min_value" not in arguments and "max_value" not in arguments:
            expected = "no NaN"
        observed = f"row group {row_group}: {broken.count} rows, e.g. {', '.join(map(str, broken.examples))}"
        column = column_of[arguments["column"]]
        findings.append(Finding(where, column, broken.expectation.rule, expected, observed, Layer.SAMPLE))
    return findings


def _sample_frame(
    table: pa.Table, contract: Contract, day: date
) -> tuple[pd.DataFrame, dict[str, str], list[Expectation]]:
    """Scalars only: list columns as objects would cost seconds to fingerprint."""
    import pandas as pd

    series: dict[str, Any] = {ROW: range(table.num_rows)}
    column_of: dict[str, str] = {}
    expectations: list[Expectation] = []
    for column in contract.columns:
        bounds = bounds_of(column, day)
        if bounds is None:
            continue
        for name, values, rules in _derived(column, table[column.name].combine_chunks(), bounds.low, bounds.high):
            series[name], column_of[name] = values, column.name
            expectations += rules
    return pd.DataFrame(series), column_of, expectations


def _derived(column: Column, values: pa.Array, low: float, high: float) -> list[tuple[str, Any, list[Expectation]]]:
    name, top = column.name, high if math.isfinite(high) else None
    if column.role is Role.JAGGED:
        frame = pa.table({"row": pc.list_parent_indices(values), "id": values.flatten()})
        extremes = frame.group_by("row").aggregate([("id", "min"), ("id", "max")])
        rows = extremes["row"].to_numpy()
        least, most = (
            _scattered(extremes["id_min"], rows, len(values)),
            _scattered(extremes["id_max"], rows, len(values)),
        )
        length = pc.list_value_length(values).to_numpy(zero_copy_only=False)
        return [
            (f"{name}__len", length, [between(Rule.LIST_LENGTH, f"{name}__len", 0, column.max_length)]),
            (f"{name}__min", least, [between(Rule.MINIMUM, f"{name}__min", low, None)]),
            (f"{name}__max", most, [between(Rule.MAXIMUM, f"{name}__max", None, top)] if top is not None else []),
        ]
    if column.role is Role.EVENT_TIME:
        values = values.cast(pa.int64())
    rules = [not_null(Rule.FINITE, name), between(Rule.MINIMUM, name, low, None)]
    if top is not None:
        rules.append(between(Rule.MAXIMUM, name, None, top))
    return [(name, values.to_numpy(zero_copy_only=False), rules)]


def _scattered(values: pa.ChunkedArray, rows: Any, size: int) -> Any:
    import numpy as np

    scattered = np.full(size, np.nan)
    scattered[rows] = values.to_numpy()
    return scattered
