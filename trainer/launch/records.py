"""Small JSON records that are either wholly there or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.launch.errors import RecordWriteError

_PRIVATE = 0o600


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write aside, flush to disk, rename: a reader sees the old record or the new one, also after a power cut.

    Raises:
        RecordWriteError: disk full, no permission, ...; an earlier record is untouched and nothing is left behind.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_durably(aside, json.dumps(record, indent=1).encode())
        aside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise RecordWriteError(str(path), error) from error


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: a rename alone may be lost in a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, or None if it was never written."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    record = json.loads(text)
    return record if isinstance(record, dict) else None
