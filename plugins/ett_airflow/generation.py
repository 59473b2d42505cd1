"""Which folder an Airflow run works in: one of its own, and a new one each time a completed day is trained again.

What a run has trained and published never changes. So when a person clears the first task of a completed run, the day
is trained again beside it, as `<run>.again2`: another job, another anchor, another version.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett_airflow.seen_ends import completed
from trainer.atomic_file import replace_text
from trainer.run_folder import RunFolder, registry_root, safe_name

ORIGIN_VERSION = 1
ORIGIN_FILE = "airflow.json"
_AGAIN = re.compile(r"(?P<base>.+)\.again(?P<number>\d+)")


class RunNameTakenError(ValueError):
    """Two Airflow runs whose ids give the same folder name."""

    def __init__(self, run_id: str, folder: RunFolder, owner: str) -> None:
        super().__init__(
            f"run {run_id!r} would share the folder {folder.root} with run {owner!r}; trigger it under another run id"
        )


@dataclass(frozen=True)
class RunIdentity:
    """A run by Airflow's names."""

    dag_id: str
    run_id: str

    @property
    def folder(self) -> RunFolder:
        """The folder that this run works in now: its newest one. It need not exist yet.

        Raises:
            RunNameTakenError: another run's folder.
        """
        first = RunFolder.of(self.dag_id, safe_name(self.run_id))
        numbered = [(1, first), *((number, folder) for number, folder in _again(first) if self._owns(folder))]
        newest = max(numbered, key=lambda each: each[0])[1]
        owner = owner_of(newest)
        if owner is not None and owner != self.run_id:
            raise RunNameTakenError(self.run_id, newest, owner)
        return newest

    def begin(self) -> RunFolder:
        """The folder to work in from the run's first task on, made: a new one when the newest has been trained."""
        folder = self.folder
        if completed(folder, "train") or (not folder.root.exists() and _is_registered(folder)):
            folder = _next(folder)
        folder.create()
        origin = {"version": ORIGIN_VERSION, "dag_id": self.dag_id, "run_id": self.run_id}
        if not (folder.root / ORIGIN_FILE).exists():
            replace_text(folder.root / ORIGIN_FILE, json.dumps(origin) + "\n")
        return folder

    def _owns(self, folder: RunFolder) -> bool:
        return owner_of(folder) == self.run_id


def owner_of(folder: RunFolder) -> str | None:
    """The Airflow run that made a folder; None for one made by hand for `python -m trainer`."""
    try:
        origin: dict[str, Any] = json.loads((folder.root / ORIGIN_FILE).read_text(encoding="utf-8"))
        return str(origin["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def trained_before(folder: RunFolder) -> RunFolder | None:
    """The run's folder before this one, if this one trains its day again and that one is still there."""
    match = _AGAIN.fullmatch(folder.run)
    if match is None:
        return None
    first = RunFolder(folder.root.parent / match["base"])
    older = [(1, first), *_again(first)]
    there = [each for each in older if each[0] < int(match["number"]) and each[1].spec_path.exists()]
    return max(there, key=lambda each: each[0])[1] if there else None


def began_ns(folder: RunFolder) -> int | None:
    """When the work in a folder that trains a day again began, Unix ns; None for a run's first folder."""
    if _AGAIN.fullmatch(folder.run) is None:
        return None
    try:
        return (folder.root / ORIGIN_FILE).stat().st_mtime_ns
    except OSError:
        return None


def _again(first: RunFolder) -> list[tuple[int, RunFolder]]:
    found = []
    for path in first.root.parent.glob(f"{first.run}.again*"):
        match = _AGAIN.fullmatch(path.name)
        if match and match["base"] == first.run:
            found.append((int(match["number"]), RunFolder(path)))
    return found


def _next(folder: RunFolder) -> RunFolder:
    match = _AGAIN.fullmatch(folder.run)
    base, number = (match["base"], int(match["number"])) if match else (folder.run, 1)
    while True:
        number += 1
        following = RunFolder(Path(folder.root.parent) / f"{base}.again{number}")
        if not following.root.exists() and not _is_registered(following):
            return following


def _is_registered(folder: RunFolder) -> bool:
    return (registry_root() / folder.refresh / "versions" / folder.run).exists()
