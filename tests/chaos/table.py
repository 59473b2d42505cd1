"""Writes the chaos table into docs/recovery.md: `python tests/chaos/table.py [RESULTS] [DOCUMENT]`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ledger import Entry, entries, results_path

from tests.generated_part import into

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "recovery.md"
BEGIN, END = "<!-- chaos table: written by tests/chaos/table.py -->", "<!-- end of the chaos table -->"

_HEAD = """| fault | phase | runs | recovered | bits equal | rows exact | seconds lost |
| --- | --- | ---: | ---: | ---: | ---: | ---: |"""


def table(results: Sequence[Entry]) -> str:
    """One row for each fault in each phase, in the order in which they first befell a job.

    >>> fine = dict(fault="kill -9 of rank 0", phase="commit", recovered=True, bits_equal=True, rows_exact=True)
    >>> print(table([Entry(run="a", lost_s=9.04, **fine), Entry(run="b", lost_s=11.0, **fine)]).splitlines()[-1])
    | kill -9 of rank 0 | commit | 2 | 2 | 2 | 2 | 10.0 |
    """
    order = {(entry.fault, entry.phase): number for number, entry in reversed(list(enumerate(results)))}

    def place(entry: Entry) -> int:
        return order[entry.fault, entry.phase]

    rows = [_row(list(group)) for _, group in groupby(sorted(results, key=place), key=place)]
    return "\n".join([_HEAD, *rows])


def _row(group: Sequence[Entry]) -> str:
    lost = [entry.lost_s for entry in group if entry.lost_s is not None]
    cells = (
        group[0].fault,
        group[0].phase,
        len(group),
        sum(entry.recovered for entry in group),
        sum(entry.bits_equal for entry in group),
        sum(entry.rows_exact for entry in group),
        f"{statistics.median(lost):.1f}" if lost else "none",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str]) -> int:
    source = Path(arguments[0]) if arguments else results_path()
    target = Path(arguments[1]) if len(arguments) > 1 else DOCUMENT
    if not source.exists():
        print(f"error: no results at {source}; run `make chaos` first", file=sys.stderr)
        return 1
    results = entries(source)
    target.write_text(into(target.read_text(encoding="utf-8"), table(results), begin=BEGIN, end=END), encoding="utf-8")
    print(f"{target}: {len(results)} results")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
