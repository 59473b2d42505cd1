"""The manifest: its appearance makes a folder a checkpoint; it says what the folder holds, with each file's hash."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from trainer.checkpoint.durable import FileRecord, seal, unseal, write_atomically
from trainer.checkpoint.errors import DamagedManifestError, ForeignFileError, MissingFileError, MissingManifestError
from trainer.checkpoint.progress import Progress
from trainer.spec import RefreshSpec, RunSpec
from trainer.storage import MANIFEST_NAME, StoragePath, located

METADATA_NAME = ".metadata"
REFERENCE_NAME = "reference.parquet"
FORMAT_VERSION = 2

_STEP_FOLDER = re.compile(r"step-(?P<step>\d+)(-(?P<save>[0-9a-f]+-\d+))?")


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
    """What a committed folder holds. `tensors` are by fully qualified name; `values` name what is no tensor.

    `metadata` and `reference` name the files of DCP's index and of the trainer's predictions (anchors only).
    `save_seconds` is how long the save took, from its start to this manifest.
    """

    kind: CheckpointKind
    save_id: str
    lineage: Lineage
    progress: Progress
    save_seconds: float
    files: Mapping[str, FileRecord]
    metadata: str
    tensors: Mapping[str, TensorRecord]
    reference: str | None = None
    values: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    created_unix_ns: int = field(default_factory=time.time_ns)

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    def write(self, folder: StoragePath) -> None:
        """Make the folder a checkpoint, in one atomic step. All its other files must be durable by now.

        Raises:
            CheckpointWriteError
        """
        document = {**asdict(self), "progress": self.progress.to_dict()}
        write_atomically(folder / MANIFEST_NAME, seal(document, version=FORMAT_VERSION))

    @classmethod
    def read(cls, folder: StoragePath) -> Manifest:
        """The manifest of a committed folder; of the other files nothing is looked at.

        Raises:
            MissingManifestError, DamagedManifestError, OtherVersionError, UnreadableFileError
            ForeignFileError: it lists a file that is not in its folder.
            StorageError: the object store cannot be reached.
        """
        path = folder / MANIFEST_NAME
        try:
            document = unseal(path, version=FORMAT_VERSION)
        except MissingFileError:
            raise MissingManifestError(folder) from None
        try:
            manifest = cls._from_document(document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedManifestError(path, f"{type(error).__name__}: {error}") from None
        for name in [*manifest.files, manifest.metadata, *filter(None, [manifest.reference])]:
            if name not in manifest.files or not _is_plain(name):
                raise ForeignFileError(path, name)
        return manifest

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Manifest:
        lineage = {**document["lineage"], "window": tuple(document["lineage"]["window"])}
        tensors = document["tensors"].items()
        return cls(
            kind=CheckpointKind(document["kind"]),
            save_id=document["save_id"],
            lineage=Lineage(**lineage),
            progress=Progress.from_dict(document["progress"]),
            save_seconds=float(document["save_seconds"]),
            files={name: FileRecord(**record) for name, record in document["files"].items()},
            metadata=document["metadata"],
            reference=document["reference"],
            tensors={name: TensorRecord(record["dtype"], tuple(record["shape"])) for name, record in tensors},
            values=tuple(document["values"]),
            versions=document["versions"],
            created_unix_ns=document["created_unix_ns"],
        )


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: its folder, and how far it is."""

    path: StoragePath
    step: int
    cursor: int

    @classmethod
    def open(cls, path: str | StoragePath) -> CheckpointRef:
        """The checkpoint or anchor in a folder, given as a path or URL.

        Raises:
            CheckpointError: it never committed, its manifest is damaged, or it has another format version.
            UnsupportedStorageError, StorageError: the URL's scheme is not supported, or nobody answers there.
        """
        folder = located(path) if isinstance(path, str) else path
        progress = Manifest.read(folder).progress
        return cls(folder, progress.step, progress.cursor)

    def manifest(self) -> Manifest:
        return Manifest.read(self.path)


@dataclass(frozen=True, order=True)
class SaveId:
    """Tells a save from every other. `incarnation` is unique to an attempt, and those of later attempts sort after
    those of earlier ones; `number` counts the attempt's saves.
    """

    incarnation: str
    number: int

    @classmethod
    def new_incarnation(cls) -> str:
        return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(4)}"

    @classmethod
    def parse(cls, text: str) -> SaveId:
        incarnation, _, number = text.rpartition("-")
        return cls(incarnation, int(number))

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.number}"


@dataclass(frozen=True, order=True)
class StepFolder:
    """What the name of a step's folder says; sorts as the saves were made, as far as steps and clocks can tell."""

    step: int
    save: SaveId

    @classmethod
    def parse(cls, name: str) -> StepFolder | None:
        """None for a folder that no save made. Format version 1 named them by the step alone."""
        match = _STEP_FOLDER.fullmatch(name)
        if match is None:
            return None
        return cls(int(match["step"]), SaveId.parse(match["save"]) if match["save"] else SaveId("", 0))

    def __str__(self) -> str:
        return f"step-{self.step}-{self.save}"


def spec_digest(spec: RefreshSpec) -> str:
    """SHA-256 of the spec's content: layout and comments of its file do not count."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def _is_plain(name: str) -> bool:
    """Whether joining it to the folder stays in the folder."""
    return name not in ("", ".", "..", MANIFEST_NAME) and PurePosixPath(name).name == name and "\0" not in name
