"""The layout of a feature log: one folder per day, its files, and the landing marker that says that it is complete.

ROOT/day=2026-11-28/part-0.parquet
ROOT/day=2026-11-28/_LANDED.json      written last
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.atomic_file import replace_text, replacing
from trainer.dpp.contract import arrow_schema, contract_hash
from trainer.dpp.errors import LandingError
from trainer.spec import Contract

MARKER_VERSION = 1
MARKER_NAME = "_LANDED.json"
ROWS_PER_GROUP = 16_384
_DAY_FOLDER = re.compile(r"^day=(\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True)
class LandedFile:
    """One file of a landed day: `size` in bytes."""

    name: str
    size: int
    rows: int


@dataclass(frozen=True)
class LandingMarker:
    """What a day holds, written when all of it is in place.

    A day on which nothing can happen (the stores are closed) lands with no file and the reason in `closed`; a day
    without a marker is missing.
    """

    day: date
    contract: str
    files: tuple[LandedFile, ...]
    source: dict[str, Any]
    closed: str | None = None
    landed_at: str = ""
    version: int = field(default=MARKER_VERSION)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "day": self.day.isoformat(), "rows": self.rows}

    @classmethod
    def load(cls, path: Path) -> LandingMarker:
        """Read a marker.

        Raises:
            FileNotFoundError: there is none; the day has not landed.
            LandingError: it is damaged or of another version.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != MARKER_VERSION:
                raise ValueError(f"version {data['version']!r}, this release reads {MARKER_VERSION}")
            files = tuple(LandedFile(file["name"], int(file["size"]), int(file["rows"])) for file in data["files"])
            return cls(
                day=date.fromisoformat(data["day"]),
                contract=data["contract"],
                files=files,
                source=data["source"],
                closed=data["closed"],
                landed_at=data["landed_at"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LandingError(f"{path}: damaged landing marker ({error}); land the day again") from error


def day_folder(root: Path, day: date) -> Path:
    return root / f"day={day.isoformat()}"


def marker_path(root: Path, day: date) -> Path:
    return day_folder(root, day) / MARKER_NAME


def present_days(root: Path) -> list[date]:
    """Days that have a folder, landed or not, in order."""
    if not root.is_dir():
        return []
    matches = (_DAY_FOLDER.match(entry.name) for entry in root.iterdir() if entry.is_dir())
    return sorted(date.fromisoformat(match[1]) for match in matches if match)


def landed_days(root: Path) -> list[date]:
    """Days that have landed completely, in order."""
    return [day for day in present_days(root) if marker_path(root, day).is_file()]


@contextmanager
def landing_lock(root: Path) -> Iterator[None]:
    """Only one process lands days of a root at a time; a second one waits."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".landing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def land(
    root: Path, day: date, table: pa.Table, contract: Contract, *, source: dict[str, Any], closed: str | None = None
) -> LandingMarker:
    """Write a day's partition: file aside and renamed, landing marker last. An older landing is replaced.

    Raises:
        LandingError: the table is not what the contract says, or an empty day has no reason for being empty.
    """
    schema = arrow_schema(contract)
    if not table.schema.equals(schema, check_metadata=False):
        raise LandingError(f"day {day}: the source made columns that differ from the contract:\n{table.schema}")
    if (table.num_rows == 0) != (closed is not None):
        raise LandingError(f"day {day}: {table.num_rows} rows, closed: {closed!r}; only closed days land empty")
    folder = day_folder(root, day)
    folder.mkdir(parents=True, exist_ok=True)
    marker_path(root, day).unlink(missing_ok=True)
    files = () if closed else (write_file(folder / "part-0.parquet", table),)
    marker = LandingMarker(
        day=day,
        contract=contract_hash(contract),
        files=files,
        source=source,
        closed=closed,
        landed_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_json(marker_path(root, day), marker.to_json())
    return marker


def write_file(path: Path, table: pa.Table) -> LandedFile:
    """One Parquet file as every partition has it: small row groups to resume in, checksummed pages, zstd."""
    with replacing(path) as aside:
        pq.write_table(table, aside, row_group_size=ROWS_PER_GROUP, compression="zstd", write_page_checksum=True)
    return LandedFile(path.name, path.stat().st_size, table.num_rows)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a small JSON document in one atomic step."""
    replace_text(path, json.dumps(content, indent=1) + "\n")
