"""Small JSON records that are either wholly there or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.atomic_file import replace_text
from trainer.launch.errors import RecordWriteError

_PRIVATE = 0o600


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write aside, flush to disk, rename: a reader sees the old record or the new one, also after a power cut.

    Raises:
        RecordWriteError: disk full, no permission, ...; an earlier record is untouched and nothing is left behind.
    """
    try:
        replace_text(path, json.dumps(record, indent=1), mode=_PRIVATE)
    except OSError as error:
        raise RecordWriteError(str(path), error) from error


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, or None if it was never written."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    record = json.loads(text)
    return record if isinstance(record, dict) else None
