"""What a task shows of its job's log, line by line and each once, whichever process of the task is at work."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer.launch import JobHandle, LaunchError, launcher_for
from trainer.run_folder import RunFolder

LIMIT_BYTES = 1 << 16
"""Per rank and look: a job that writes faster is shown in part, its whole log stays in the run folder."""


class JobLog:
    """The job's log since it was last shown. The position is kept in the run folder, so that a try goes on from it."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle = handle
        self._path = RunFolder.open(handle.run_folder_url).root / "control" / f"shown-{handle.id}.json"
        self._position = self._kept()

    def new_lines(self) -> list[str]:
        """Lines not shown yet. A log that cannot be read is no reason to stop following its job."""
        try:
            launcher = launcher_for(self._handle.scheduler)
            lines, self._position = launcher.logs_after(self._handle, self._position, limit=LIMIT_BYTES)
        except (LaunchError, OSError):
            return []
        if lines:
            self._keep()
        return lines

    def _kept(self) -> dict[int, int]:
        try:
            return {int(rank): int(offset) for rank, offset in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _keep(self) -> None:
        """Not synced to disk: after a power cut some lines are shown twice."""
        try:
            self._path.parent.mkdir(exist_ok=True)
            aside = Path(f"{self._path}.{os.getpid()}.tmp")
            aside.write_text(json.dumps(self._position))
            aside.replace(self._path)
        except OSError:
            return
