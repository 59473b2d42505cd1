"""Which ended jobs a task has already classified, so that each end is judged exactly once."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.atomic_file import replace_text
from trainer.launch import JobState, JobStatus
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

    def states(self) -> list[JobState]:
        """How each attempt that was judged had ended, in no order."""
        found = []
        for path in self._folder.glob(f"{self._task}-a*.json"):
            try:
                found.append(JobState(json.loads(path.read_text(encoding="utf-8"))["state"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # another release's: it says nothing about this one
        return found

    def _path(self, status: JobStatus) -> Path:
        return self._folder / f"{self._task}-a{status.attempt}.json"


def completed(folder: RunFolder, task: str) -> bool:
    """Whether a job of `task` has done its work in this folder, and a task has seen it."""
    return JobState.SUCCEEDED in SeenEnds(folder, task).states()


class Hold:
    """The attempt at which a task was last held for its budget: a person who clears it grants a new one."""

    def __init__(self, folder: RunFolder, task: str) -> None:
        self._path = folder.root / "control" / f"{task}-held.json"

    @property
    def attempt(self) -> int:
        """Attempts up to this one no longer count; 0 if the task was never held."""
        try:
            return int(json.loads(self._path.read_text(encoding="utf-8"))["attempt"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def put(self, attempt: int) -> None:
        self._path.parent.mkdir(exist_ok=True)
        replace_text(self._path, json.dumps({"version": 1, "attempt": attempt}) + "\n")
