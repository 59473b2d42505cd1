"""The read plan: the files of one run with their identity, their training rows, and the holdout.

Written once by the schema check. A reader that opens a file which is no longer the planned one stops: reading new data
through an old plan would train on rows that nobody checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from trainer.atomic_file import replace_text
from trainer.dpp.cursor import Interval
from trainer.dpp.errors import PlanError
from trainer.dpp.hashing import HoldoutRule

PLAN_VERSION = 1
_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # footer length and magic


@dataclass(frozen=True)
class FileIdentity:
    """What tells a file from another one under the same path."""

    size: int
    mtime_ns: int
    inode: int
    footer_sha256: str

    @classmethod
    def of(cls, handle: BinaryIO) -> FileIdentity:
        """The identity of an open Parquet file; the position of the handle is moved.

        Raises:
            ValueError: it does not end as Parquet files do.
        """
        status = os.fstat(handle.fileno())
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, hashlib.sha256(_footer(handle)).hexdigest())

    def differences(self, other: FileIdentity) -> list[str]:
        """Each part in which `other`, the file found, differs from this, the file planned."""
        found = asdict(other)
        return [f"{name} {value} became {found[name]}" for name, value in asdict(self).items() if found[name] != value]


def _footer(handle: BinaryIO) -> bytes:
    size = handle.seek(0, os.SEEK_END)
    if size < 2 * len(_MAGIC) + 4:
        raise ValueError(f"{size} bytes are too few for a Parquet file")
    handle.seek(size - _TAIL_BYTES)
    tail = handle.read(_TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC:
        raise ValueError("it does not end with the Parquet magic bytes; it is cut off or still being written")
    if length > size - _TAIL_BYTES - len(_MAGIC):
        raise ValueError(f"its footer claims {length} bytes, the file has {size}")
    handle.seek(size - _TAIL_BYTES - length)
    return handle.read(length) + tail


@dataclass(frozen=True)
class PlannedRowGroup:
    """A row group's rows, and how many of them are trained on; the others are the holdout's."""

    rows: int
    train_rows: int

    @property
    def holdout_rows(self) -> int:
        return self.rows - self.train_rows


@dataclass(frozen=True)
class PlannedFile:
    """A file of the plan. `path` is absolute."""

    path: str
    day: date
    identity: FileIdentity
    row_groups: tuple[PlannedRowGroup, ...]

    def open(self) -> BinaryIO:
        """The open file, certainly the planned one: identity is taken from the handle, not from the path.

        Raises:
            PlanError: it is gone, cannot be read, or is another file now.
        """
        try:
            handle = Path(self.path).open("rb")  # noqa: SIM115 - the caller closes it
        except OSError as error:
            raise PlanError(
                f"{self.path}: cannot be opened ({error.strerror}); restore it or start a new run"
            ) from error
        try:
            differences = self.identity.differences(FileIdentity.of(handle))
        except (ValueError, OSError) as error:
            handle.close()
            raise PlanError(f"{self.path}: changed since the plan was written: {error}; start a new run") from error
        if differences:
            handle.close()
            changed = "; ".join(differences)
            raise PlanError(f"{self.path}: changed since the plan was written ({changed}); start a new run")
        return handle

    def check_unchanged(self, handle: BinaryIO) -> None:
        """Whether an open file is still what `open` found; call it after reading and before using what was read.

        A write into the file moves its times before its bytes, so bytes read before this call are the planned ones.

        Raises:
            PlanError: it was rewritten in place, or deleted or replaced, since it was opened.
        """
        status = os.fstat(handle.fileno())
        if not status.st_nlink and not self._is_at_its_path(status.st_ino):
            raise PlanError(f"{self.path}: deleted or replaced while it was being read; restore it or start a new run")
        if (status.st_size, status.st_mtime_ns) != (self.identity.size, self.identity.mtime_ns):
            raise PlanError(
                f"{self.path}: rewritten while it was being read (size {self.identity.size} became {status.st_size}, "
                f"mtime_ns {self.identity.mtime_ns} became {status.st_mtime_ns}); start a new run"
            )

    def _is_at_its_path(self, inode: int) -> bool:
        """Some network file systems count no links at all."""
        try:
            return Path(self.path).stat().st_ino == inode
        except OSError:
            return False


@dataclass(frozen=True)
class ReadPlan:
    """All that a run reads: `files` in stream order (by day), the rule of the holdout, and the contract's hash."""

    refresh: str
    start: date
    end: date
    contract: str
    holdout: HoldoutRule
    files: tuple[PlannedFile, ...]
    version: int = field(default=PLAN_VERSION)

    @cached_property
    def train_rows(self) -> int:
        return sum(group.train_rows for file in self.files for group in file.row_groups)

    @cached_property
    def holdout_rows(self) -> int:
        return sum(group.holdout_rows for file in self.files for group in file.row_groups)

    def intervals(self) -> list[Interval]:
        """Every training row, in stream order: where a new run starts."""
        return [
            Interval(number, position, 0, group.train_rows)
            for number, file in enumerate(self.files)
            for position, group in enumerate(file.row_groups)
            if group.train_rows
        ]

    def holdout_intervals(self) -> list[Interval]:
        """Every row of the holdout, in ordinals among each row group's holdout rows."""
        return [
            Interval(number, position, 0, group.holdout_rows)
            for number, file in enumerate(self.files)
            for position, group in enumerate(file.row_groups)
            if group.holdout_rows
        ]

    def describe(self, rows: Sequence[Interval]) -> str:
        """The rows, for people: file, row group, and first and last ordinal among its training rows."""
        parts = [
            f"{self.files[part.file].path} row group {part.row_group} training rows {part.start} to {part.stop - 1}"
            for part in rows
        ]
        return "; ".join(parts) or "without rows"

    def verify(self) -> None:
        """Open every file once.

        Raises:
            PlanError: names the first file that is not the planned one.
        """
        for file in self.files:
            file.open().close()

    def dump(self, path: Path) -> None:
        """Write the plan in one atomic step."""
        replace_text(path, json.dumps(self._to_json(), indent=1) + "\n")

    def _to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "refresh": self.refresh,
            "window": {"start": self.start.isoformat(), "end": self.end.isoformat()},
            "contract": self.contract,
            "holdout": {"rule": "splitmix64(entity) below fraction", **asdict(self.holdout)},
            "train_rows": self.train_rows,
            "holdout_rows": self.holdout_rows,
            "files": [
                {
                    "path": file.path,
                    "day": file.day.isoformat(),
                    **asdict(file.identity),
                    "row_groups": [asdict(group) for group in file.row_groups],
                }
                for file in self.files
            ],
        }

    @classmethod
    def load(cls, path: Path) -> ReadPlan:
        """Read a plan.

        Raises:
            PlanError: missing, damaged, or of another version.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"{path}: no readable plan ({error}); run the schema check first") from error
        version = data.get("version") if isinstance(data, dict) else None
        if version != PLAN_VERSION:
            raise PlanError(f"{path}: plan version {version!r}, this release reads {PLAN_VERSION}; run the check again")
        try:
            plan = cls._from_json(data)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"{path}: damaged plan ({error!r}); run the schema check again") from error
        if (plan.train_rows, plan.holdout_rows) != (data["train_rows"], data["holdout_rows"]):
            raise PlanError(f"{path}: row counts do not add up; run the schema check again")
        return plan

    @classmethod
    def _from_json(cls, data: dict[str, Any]) -> ReadPlan:
        files = tuple(
            PlannedFile(
                path=file["path"],
                day=date.fromisoformat(file["day"]),
                identity=FileIdentity(file["size"], file["mtime_ns"], file["inode"], file["footer_sha256"]),
                row_groups=tuple(PlannedRowGroup(group["rows"], group["train_rows"]) for group in file["row_groups"]),
            )
            for file in data["files"]
        )
        return cls(
            refresh=data["refresh"],
            start=date.fromisoformat(data["window"]["start"]),
            end=date.fromisoformat(data["window"]["end"]),
            contract=data["contract"],
            holdout=HoldoutRule(float(data["holdout"]["fraction"]), int(data["holdout"]["salt"])),
            files=files,
        )
