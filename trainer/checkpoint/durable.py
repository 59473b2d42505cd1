"""Durable files: written, flushed to the disk or uploaded, and hashed; one of them can appear in a single step."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.atomic_file import replacing, sync
from trainer.checkpoint.errors import (
    ChangedFileError,
    CheckpointWriteError,
    DamagedManifestError,
    MissingFileError,
    OtherVersionError,
    TornFileError,
    UnreadableFileError,
)
from trainer.storage import StoragePath, naming, opened, read, size_of

_CHUNK = 1 << 22
_DIGEST = "digest"


@dataclass(frozen=True)
class FileRecord:
    """What a manifest says of one file."""

    bytes: int
    sha256: str


class HashedFile(io.RawIOBase):
    """A new file that hashes what is written to it and is durable once closed without an error.

    Raises:
        CheckpointWriteError: from every operation, so that the file is named (a full disk, a quota, a lost mount).
    """

    def __init__(self, path: StoragePath) -> None:
        super().__init__()
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._failure: CheckpointWriteError | None = None
        with _writing(path):
            self._raw: Any = path.open("xb", buffering=0) if isinstance(path, Path) else path.open("wb")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            with _writing(self.path):
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
        with _writing(self.path):
            if isinstance(self.path, Path):
                _close(self._raw, keep=kind is None)
            else:
                _complete(self._raw, keep=kind is None)
        super().__exit__(kind, error, trace)
        if self._failure is not None:  # torch.save turns it into an error that names neither file nor cause
            raise self._failure from None


def _close(raw: Any, *, keep: bool) -> None:
    try:
        if keep:
            os.fsync(raw.fileno())
    finally:
        raw.close()


def _complete(upload: Any, *, keep: bool) -> None:
    """Finish an upload, or take back the parts of it, which the store would otherwise keep unseen."""
    complete = False
    try:
        if keep:
            upload.close()
            complete = True
    finally:
        if not complete:
            upload.closed = True  # else it would be completed when it is collected
            upload.discard()


def write_durably(path: StoragePath, data: bytes) -> FileRecord:
    """Write a new file to the disk."""
    with HashedFile(path) as stream:
        stream.write(data)
    return stream.record()


def write_atomically(path: StoragePath, data: bytes) -> None:
    """Make a file appear, or replace it, in one step that survives a power cut; nobody ever sees half of it.

    On a file system it is written aside, renamed over `path`, and the folder flushed; in an object store it is one PUT.
    """
    with _writing(path):
        if not isinstance(path, Path):
            path.fs.pipe_file(path.path, data)
            return
        with replacing(path) as aside:
            aside.write_bytes(data)


def make_folder(folder: StoragePath) -> None:
    """Make a folder that is still there after a power cut. Object stores have none."""
    if isinstance(folder, Path):
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)


def sync_folder(folder: StoragePath) -> None:
    """Flush a folder's entries: without it a new file may not survive a power failure."""
    if isinstance(folder, Path):
        with _writing(folder):
            sync(folder)


def hash_file(path: StoragePath) -> FileRecord:
    """Size and SHA-256 of a file as it is on the storage now."""
    digest = hashlib.sha256()
    size = 0
    with opened(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def check_size(path: StoragePath, expected: FileRecord) -> None:
    """Raises MissingFileError, TornFileError or UnreadableFileError."""
    with _reading(path):
        size = size_of(path)
    if size != expected.bytes:
        raise TornFileError(path, size=size, expected=expected.bytes)


def check_content(path: StoragePath, expected: FileRecord) -> None:
    """Raises MissingFileError, TornFileError, UnreadableFileError or ChangedFileError."""
    check_size(path, expected)
    with _reading(path):
        found = hash_file(path)
    if found.sha256 != expected.sha256:
        raise ChangedFileError(path, sha256=found.sha256, expected=expected.sha256)


def seal(document: Mapping[str, Any], *, version: int) -> bytes:
    """A JSON document that carries its version and its own digest, so that a changed byte in it shows too."""
    versioned = {**document, "version": version}
    return json.dumps({**versioned, _DIGEST: _digest(versioned)}, indent=1, sort_keys=True).encode()


def unseal(path: StoragePath, *, version: int) -> dict[str, Any]:
    """Read a sealed document.

    Raises:
        MissingFileError, UnreadableFileError
        OtherVersionError: asked before the digest, since another version may seal otherwise.
        DamagedManifestError: no JSON object, or its digest is not that of its content.
    """
    with _reading(path):
        size_of(path)  # a symbolic link is no document
        content = read(path)
    try:
        document = dict(json.loads(content))
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
def _writing(path: StoragePath) -> Iterator[None]:
    try:
        with naming(path):
            yield
    except OSError as error:
        raise CheckpointWriteError(path, error) from error


@contextmanager
def _reading(path: StoragePath) -> Iterator[None]:
    """Tells a file that is lost from a store that is out of reach: the first is damage, the second says nothing."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(path) from None
    except OSError as error:
        if not isinstance(path, Path):
            raise
        raise UnreadableFileError(path, error) from error
