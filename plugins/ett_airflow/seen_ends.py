"""Which ended jobs a task has already classified, so that each end is judged exactly once."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.atomic_file import replace_text
from trainer.launch import JobStatus
from trainer.run_folder import RunFolder


class SeenEnds:
    """One small file per ended attempt, written when a try judged it.

    A try that finds an ended attempt must tell two cases apart: the try before it died without a word (then this one
    judges the end), or the end was judged and this is a retry, or a person's clear (then the next attempt is due).
    """

    def __init__(self, folder: RunFolder, task: str) -> None:
        self._folder = folder.root / "control"
        self._task = task

    def __contains__(self, status: JobStatus) -> bool:
        return self._path(status).exists()

    def add(self, status: JobStatus) -> None:
        self._folder.mkdir(exist_ok=True)
        path = self._path(status)
        replace_text(path, json.dumps({"version": 1, **status.to_dict()}) + "\n")

    def _path(self, status: JobStatus) -> Path:
        return self._folder / f"{self._task}-a{status.attempt}.json"
