"""What a check found, and the one table and JSON document of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    MEASURED = "measured"  # a figure that nothing is held against
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table; `figures` are named with their units, e.g. `cold_s`."""

    check: str
    subject: str
    verdict: Verdict
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def skipped(cls, check: str, why: str) -> Finding:
        return cls(check=check, subject="all of it", verdict=Verdict.SKIPPED, note=why)

    @classmethod
    def of_error(cls, check: str, error: BaseException) -> Finding:
        return cls(check=check, subject="all of it", verdict=Verdict.FAILED, note=f"{type(error).__name__}: {error}")


def table(findings: Sequence[Finding], *, machine: str) -> str:
    """A markdown table, a line above it that names the machine, a line below that counts.

    >>> print(table([Finding.skipped("staging", "no | GPU")], machine="none"))
    Machine: none
    <BLANKLINE>
    | check   | subject   | verdict | figures | note      |
    | ------- | --------- | ------- | ------- | --------- |
    | staging | all of it | skipped |         | no \\| GPU |
    <BLANKLINE>
    0 passed, 0 failed, 0 measured, 1 skipped
    """
    rows = [["check", "subject", "verdict", "figures", "note"]]
    rows += [
        [_cell(text) for text in (found.check, found.subject, found.verdict, _figures(found.figures), found.note)]
        for found in findings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    counts = ", ".join(f"{sum(f.verdict is verdict for f in findings)} {verdict.lower()}" for verdict in Verdict)
    return "\n".join([f"Machine: {machine}", "", *lines, "", counts])


def document(findings: Sequence[Finding], *, machine: str) -> str:
    """The same as JSON."""
    return json.dumps({"machine": machine, "findings": [asdict(found) for found in findings]}, indent=1)


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: float) -> str:
    """Three significant digits, without an exponent where it reads well.

    >>> [_number(value) for value in (0.0, 3.2e-7, 0.01234, 17.04, 123456.0)]
    ['0', '3.2e-07', '0.0123', '17', '123456']
    """
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
