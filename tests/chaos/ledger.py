"""The results of the suite, a JSON line for each blow that a job was dealt: what `table.py` makes the table of."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS_VARIABLE = "ETT_CHAOS_RESULTS"
_DEFAULT = Path(__file__).resolve().parents[2] / ".ett" / "chaos" / "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One blow, and how the job that was dealt it came out. `lost_s` is None where the blow cost no attempt."""

    fault: str
    phase: str
    run: str
    recovered: bool
    bits_equal: bool
    rows_exact: bool
    lost_s: float | None


def results_path() -> Path:
    """`$ETT_CHAOS_RESULTS`, else `.ett/chaos/results.jsonl` of this repository."""
    return Path(os.environ.get(RESULTS_VARIABLE) or _DEFAULT)


class Ledger:
    """One session's results; the first of them replaces those of the session before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = False

    def add(self, entry: Entry) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a" if self._begun else "w", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(entry)) + "\n")
        self._begun = True


def entries(path: Path) -> list[Entry]:
    return [Entry(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
