"""What the schema check found: each fault with its file, column and rule, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

REPORT_VERSION = 1
_SHOWN = 12


class Layer(StrEnum):
    """Where a rule looks: what it costs grows from top to bottom."""

    PARTITION = "partition"
    FOOTER = "footer"
    SAMPLE = "sample"
    SCAN = "scan"


class Rule(StrEnum):
    LANDED = "landed"
    MARKER_READABLE = "marker_readable"
    MARKER_CONTRACT = "marker_contract"
    MARKER_ROWS = "marker_rows"
    MARKER_FILES = "marker_files"
    ROWS_VS_MEDIAN = "rows_vs_median"
    HAS_ROWS = "has_rows"
    HAS_TRAINING_ROWS = "has_training_rows"
    READABLE = "readable"
    COLUMN_MISSING = "column_missing"
    COLUMN_EXTRA = "column_extra"
    COLUMN_DUPLICATE = "column_duplicate"
    COLUMN_ORDER = "column_order"
    COLUMN_TYPE = "column_type"
    NOT_NULLABLE = "not_nullable"
    NO_NULLS = "no_nulls"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    FINITE = "finite"
    LIST_LENGTH = "list_length"
    PAGE_CHECKSUMS = "page_checksums"
    UNCHANGED = "unchanged_while_read"
    EVALUATED = "rule_evaluated"


_WHAT_TO_DO: dict[Rule, str] = {
    Rule.LANDED: "wait for the day to land, or land it again (python -m trainer.dpp.prepare SPEC)",
    Rule.MARKER_READABLE: "land the day again",
    Rule.MARKER_CONTRACT: "the day was landed for another contract: land it again for this one",
    Rule.MARKER_ROWS: "rows were lost or added after landing: land the day again",
    Rule.MARKER_FILES: "files were lost, added or changed after landing: land the day again",
    Rule.ROWS_VS_MEDIAN: "see whether upstream lost data; if so few rows are right, lower data.min_rows_vs_median",
    Rule.HAS_ROWS: "land the day again; a day that is meant to be empty lands with a reason in `closed`",
    Rule.HAS_TRAINING_ROWS: "widen the window, or lower data.holdout.fraction",
    Rule.READABLE: "the file is cut off, half-written, damaged or not accessible: land the day again",
    Rule.COLUMN_MISSING: "write the column again, or change the contract in the refresh spec",
    Rule.COLUMN_EXTRA: "stop writing the column, or add it to the contract in the refresh spec",
    Rule.COLUMN_DUPLICATE: "write each column once",
    Rule.COLUMN_ORDER: "write the columns in the contract's order",
    Rule.COLUMN_TYPE: "write the contract's type; a silent cast would change values",
    Rule.NOT_NULLABLE: "declare the field (and list elements) not null in the writer's schema",
    Rule.NO_NULLS: "fill or drop the rows upstream",
    Rule.MINIMUM: "look upstream for the cause; if the values are right, change the contract's bounds",
    Rule.MAXIMUM: "look upstream for the cause; if the values are right, change the contract's bounds",
    Rule.FINITE: "replace NaN and infinities upstream; they would poison every weight",
    Rule.LIST_LENGTH: "truncate the lists upstream, or raise max_length in the contract",
    Rule.PAGE_CHECKSUMS: "the bytes on disk are not those that were written: land the day again",
    Rule.UNCHANGED: "writers must write aside and rename; start a new run when the writer is done",
    Rule.EVALUATED: "the rule could not be evaluated, so nothing is known: see `observed`",
}


@dataclass(frozen=True)
class Finding:
    """One broken rule. `file` is a path, or a day's folder; `column` is None where the rule is about all of it."""

    file: str
    column: str | None
    rule: Rule
    expected: str
    observed: str
    layer: Layer

    @property
    def action(self) -> str:
        """What to do."""
        return _WHAT_TO_DO[self.rule]

    def __str__(self) -> str:
        where = f"{self.file}: column {self.column}" if self.column else self.file
        return f"{where}: rule {self.rule}: expected {self.expected}, observed {self.observed}. To do: {self.action}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "action": self.action}


@dataclass(frozen=True)
class SchemaReport:
    """The outcome of a schema check, as `schema_report.json` has it."""

    refresh: str
    run: str
    window: tuple[str, str]
    findings: tuple[Finding, ...]
    days: int
    files: int
    rows: int
    rules: dict[str, int]
    seconds: dict[str, float]
    sampled: str | None = None
    version: int = field(default=REPORT_VERSION)

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def message(self) -> str:
        """For people: the outcome, and every finding up to a screenful."""
        window = f"{self.refresh} [{self.window[0]}, {self.window[1]})"
        if self.passed:
            return f"{window}: {self.rows:,} rows in {self.files} files keep the contract"
        shown = [f"- {finding}" for finding in self.findings[:_SHOWN]]
        more = len(self.findings) - len(shown)
        rest = [f"... and {more} more in schema_report.json"] if more else []
        return "\n".join([f"{window}: {len(self.findings)} findings; nothing was trained on", *shown, *rest])

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "passed": self.passed,
            "message": self.message,
            "findings": [finding.to_json() for finding in self.findings],
        }


def distinct(findings: list[Finding]) -> list[Finding]:
    """The findings without those that a cheaper layer has already made: same file, column and rule."""
    seen: set[tuple[str, str | None, Rule]] = set()
    kept = []
    for finding in findings:
        key = (finding.file, finding.column, finding.rule)
        if key not in seen:
            seen.add(key)
            kept.append(finding)
    return kept
