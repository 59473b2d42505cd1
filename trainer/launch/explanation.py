"""What a job said about its own end: the error file that it wrote, else its last words on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett_reports.events import Cause
from trainer.launch.job_folder import JobFolder
from trainer.launch.log_files import last_lines, rank_log

_MESSAGE_LENGTH = 4000
_ERROR_FILE_BYTES = 1 << 18
_STDERR_LINES = 5


@dataclass(frozen=True)
class Explanation:
    """Text of a rank, untrusted: for showing, never for deciding."""

    message: str
    cause: Cause | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def explanation(folder: JobFolder, rank: int) -> Explanation:
    """What `rank` left to be told to people."""
    written = _error_file(folder.errors_dir / f"rank-{rank}.json")
    if written is not None:
        return written
    path = rank_log(folder, rank, "stderr.log")
    lines = last_lines(path, _STDERR_LINES) if path else []
    return Explanation("\n".join(lines)[-_MESSAGE_LENGTH:])


def _error_file(path: Path) -> Explanation | None:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_ERROR_FILE_BYTES))
    except (OSError, ValueError):
        return None  # absent or cut short by the death it was to explain
    if not isinstance(content, dict) or not content.get("message"):
        return None
    details = content.get("details")
    return Explanation(
        message=str(content["message"])[:_MESSAGE_LENGTH],
        cause=_known_cause(content.get("cause")),
        details=details if isinstance(details, dict) else {},
    )


def _known_cause(text: Any) -> Cause | None:
    return Cause(text) if text in set(Cause) else None
