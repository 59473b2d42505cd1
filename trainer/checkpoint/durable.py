"""Durable files: written, flushed to the disk, hashed, and published by one rename."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.checkpoint.errors import (
    ChangedFileError,
    CheckpointWriteError,
    DamagedManifestError,
    MissingFileError,
    OtherVersionError,
    TornFileError,
)

_CHUNK = 1 << 22
_DIGEST = "digest"


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says of one file."""

    bytes: int
    sha256: str


class HashedFile(io.RawIOBase):
    """A new file that hashes what is written to it and is on the disk once closed without an error.

    Raises:
        CheckpointWriteError: from every operation, so that the file is named (a full disk, a quota, a lost mount).
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._failure: CheckpointWriteError | None = None
        with _naming(path):
            self._raw = path.open("xb", buffering=0)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            with _naming(self.path):
                written = 0
                while written < len(view):  # an unbuffered write may be short
                    written += self._raw.write(view[written:]) or 0
        except CheckpointWriteError as error:
            self._failure = error
            raise
        self._hash.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def record(self) -> FileRecord:
        return FileRecord(self.size, self._hash.hexdigest())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _naming(self.path):
            try:
                if kind is None:
                    os.fsync(self._raw.fileno())
            finally:
                self._raw.close()
        super().__exit__(kind, error, trace)
        if self._failure is not None:  # torch.save turns it into an error that names neither file nor cause
            raise self._failure from None


def write_durably(path: Path, data: bytes) -> FileRecord:
    """Write a new file to the disk."""
    with HashedFile(path) as stream:
        stream.write(data)
    return stream.record()


def write_atomically(path: Path, data: bytes) -> FileRecord:
    """Write a file that nobody ever sees half of: aside, then renamed over `path`."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    record = write_durably(aside, data)
    with _naming(path):
        aside.replace(path)
    return record


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries: without it a rename or a new file may not survive a power failure."""
    with _naming(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def publish_folder(aside: Path, target: Path) -> None:
    """Make `aside` appear as `target` in one rename. A folder already there is moved out of the way first."""
    sync_folder(aside)
    replaced = aside.with_name(f"{aside.name.removesuffix('.tmp')}.replaced.tmp")
    with _naming(target):
        if target.exists():
            target.rename(replaced)
        aside.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def hash_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file as it is on the disk now."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def check_size(path: Path, expected: FileRecord) -> None:
    """Raises MissingFileError or TornFileError."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise MissingFileError(path) from None
    if size != expected.bytes:
        raise TornFileError(path, size=size, expected=expected.bytes)


def check_content(path: Path, expected: FileRecord) -> None:
    """Raises MissingFileError, TornFileError or ChangedFileError."""
    check_size(path, expected)
    found = hash_file(path)
    if found.sha256 != expected.sha256:
        raise ChangedFileError(path, sha256=found.sha256, expected=expected.sha256)


def seal(document: Mapping[str, Any], *, version: int) -> bytes:
    """A JSON document that carries its version and its own digest, so that a changed byte in it shows too."""
    versioned = {**document, "version": version}
    return json.dumps({**versioned, _DIGEST: _digest(versioned)}, indent=1, sort_keys=True).encode()


def unseal(path: Path, *, version: int) -> dict[str, Any]:
    """Read a sealed document.

    Raises:
        OtherVersionError: asked first, since another version may seal otherwise.
        DamagedManifestError: no JSON object, or its digest is not that of its content.
    """
    try:
        document = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DamagedManifestError(path, f"{type(error).__name__}: {error}") from None
    if document.get("version") != version:
        raise OtherVersionError(path, found=document.get("version"), supported=version)
    if document.pop(_DIGEST, None) != _digest(document):
        raise DamagedManifestError(path, "its digest is not that of its content")
    return document


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(path, error) from error
