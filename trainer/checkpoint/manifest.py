"""The manifest: written last, it makes a folder a checkpoint, and says what the folder holds, with each file's hash."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainer.checkpoint.durable import FileRecord, seal, unseal, write_durably
from trainer.checkpoint.errors import DamagedManifestError, MissingManifestError
from trainer.checkpoint.progress import Progress
from trainer.spec import RefreshSpec, RunSpec

MANIFEST_NAME = "manifest.json"
METADATA_NAME = ".metadata"
REFERENCE_NAME = "reference.parquet"
FORMAT_VERSION = 1

_STEP_FOLDER = re.compile(r"step-(\d+)")


class CheckpointKind(StrEnum):
    """A step checkpoint is for this run's next attempt; the anchor is what the run hands over."""

    STEP = "step"
    ANCHOR = "anchor"


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Which run wrote a checkpoint, on which days, by which spec, and from which anchor it started (None: none)."""

    refresh: str
    run: str
    window: tuple[str, str]
    spec_digest: str
    started_from_run: str | None = None
    started_from_anchor: str | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> Lineage:
        warm_start = spec.run.warm_start
        return cls(
            refresh=spec.refresh.name,
            run=spec.run.run,
            window=(spec.run.window.start.isoformat(), spec.run.window.end.isoformat()),
            spec_digest=spec_digest(spec.refresh),
            started_from_run=warm_start.run if warm_start else None,
            started_from_anchor=warm_start.anchor if warm_start else None,
        )


@dataclass(frozen=True)
class TensorRecord:
    """A whole tensor, however it was sharded: torch's name of its type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a committed folder holds. `tensors` are by fully qualified name; `values` name what is no tensor."""

    kind: CheckpointKind
    save_id: str
    lineage: Lineage
    progress: Progress
    files: Mapping[str, FileRecord]
    tensors: Mapping[str, TensorRecord]
    values: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    created_unix_ns: int = field(default_factory=time.time_ns)

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder that it describes, durably."""
        document = {**asdict(self), "progress": self.progress.to_dict()}
        write_durably(folder / MANIFEST_NAME, seal(document, version=FORMAT_VERSION))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a committed folder; of the other files nothing is looked at.

        Raises:
            MissingManifestError, DamagedManifestError, OtherVersionError
        """
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise MissingManifestError(folder)
        document = unseal(path, version=FORMAT_VERSION)
        try:
            return cls._from_document(document)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedManifestError(path, f"{type(error).__name__}: {error}") from None

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Manifest:
        lineage = {**document["lineage"], "window": tuple(document["lineage"]["window"])}
        tensors = document["tensors"].items()
        return cls(
            kind=CheckpointKind(document["kind"]),
            save_id=document["save_id"],
            lineage=Lineage(**lineage),
            progress=Progress.from_dict(document["progress"]),
            files={name: FileRecord(**record) for name, record in document["files"].items()},
            tensors={name: TensorRecord(record["dtype"], tuple(record["shape"])) for name, record in tensors},
            values=tuple(document["values"]),
            versions=document["versions"],
            created_unix_ns=document["created_unix_ns"],
        )


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: its folder, and how far it is."""

    path: Path
    step: int
    cursor: int

    @classmethod
    def open(cls, path: str | Path) -> CheckpointRef:
        """The checkpoint or anchor in a folder (a path or `file://` URL).

        Raises:
            CheckpointError: it never committed, its manifest is damaged, or it has another format version.
        """
        folder = Path(str(path).removeprefix("file://"))
        progress = Manifest.read(folder).progress
        return cls(folder, progress.step, progress.cursor)

    def manifest(self) -> Manifest:
        return Manifest.read(self.path)


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step}"


def step_of(folder: Path) -> int | None:
    """The step that a committed folder is named for; None for anything else, such as a save that never committed."""
    match = _STEP_FOLDER.fullmatch(folder.name)
    return int(match[1]) if match else None


def spec_digest(spec: RefreshSpec) -> str:
    """SHA-256 of the spec's content: layout and comments of its file do not count."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
