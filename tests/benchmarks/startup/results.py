"""Results as lines of JSON, one a run, appended as they come: a benchmark that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.benchmarks.startup.arms import Cell
from tests.benchmarks.startup.estimates import Runs
from tests.benchmarks.startup.measures import Measures

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run was made."""

    processor: str
    cores: int
    memory_gib: int
    system: str

    @classmethod
    def here(cls) -> Machine:
        names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
        return cls(
            processor=names[0] if names else platform.processor() or platform.machine(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(psutil.virtual_memory().total / 2**30),
            system=f"Linux {platform.release().partition('-')[0]}",
        )

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.memory_gib} GiB, {self.system}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured run. `load`: the host's load of the last minute when it began; `code`: which trainer it was."""

    cell: str
    round: int
    machine: Machine
    load: float
    code: str
    measures: Measures

    def to_line(self) -> str:
        content = {
            "cell": self.cell,
            "round": self.round,
            "machine": asdict(self.machine),
            "load": self.load,
            "code": self.code,
            "measures": self.measures.to_json(),
        }
        return json.dumps(content) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Result:
        data = json.loads(line)
        measures, machine = Measures.from_json(data["measures"]), Machine(**data["machine"])
        return cls(
            cell=data["cell"],
            round=data["round"],
            machine=machine,
            load=data["load"],
            code=data["code"],
            measures=measures,
        )


@dataclass(frozen=True)
class Results:
    """The file. A last line that was cut off by a kill is as if it had not been."""

    path: Path

    def all(self) -> list[Result]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [Result.from_line(line) for line in lines if line.endswith("\n")]

    def add(self, result: Result) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size
        if torn:
            whole = self.path.read_bytes()
            self.path.write_bytes(whole[: whole.rfind(b"\n") + 1])
        with self.path.open("a", encoding="utf-8") as file:
            file.write(result.to_line())

    def rounds_of(self, cell: Cell) -> set[int]:
        return {result.round for result in self.all() if result.cell == cell.name}


def runs_of(results: Iterable[Result], cell: Cell, measure: str) -> Runs:
    """One measure of one cell by round; a round that was run again counts once, as it was last."""
    found = {one.round: getattr(one.measures, measure) for one in results if one.cell == cell.name}
    return {number: value for number, value in sorted(found.items()) if value is not None}


def code_identity() -> str:
    """Changes with any line of what is measured."""
    digest = hashlib.sha256()
    for package in ("trainer", "ett_reports"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            digest.update(path.relative_to(REPOSITORY).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
