"""How a refresh stands, read from its run folder: which task failed and why, and whether it left a snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ett_reports.events import Point
from trainer.run_folder import RunFolder, registry_root

if TYPE_CHECKING:
    from ett_reports.log import EventLog

TASKS = ("check_schema", "launch", "train", "publish", "ett", "report")
_BEFORE_REPORT = TASKS[:4]


@dataclass(frozen=True)
class TaskFailure:
    """The first task that stopped the refresh."""

    task: str
    state: str
    message: str

    def __str__(self) -> str:
        return self.message if self.message.startswith(f"{self.task}:") else f"{self.task}: {self.message}"


def first_failure(states: Mapping[str, str | None], messages: Mapping[str, str]) -> TaskFailure | None:
    """The first task in the pipeline's order that did not succeed, by Airflow's states; None if all did."""
    for task in _BEFORE_REPORT:
        state = states.get(task) or "not run"
        if state != "success":
            return TaskFailure(task, state, messages.get(task) or f"ended {state} in Airflow, without a message")
    return None


def last_messages(log: EventLog) -> dict[str, str]:
    """The message of each task's last failed end, from the operators' stamps."""
    ends = [
        (point.wall_ns or process.pairs[0][0] + point.mono_ns - process.pairs[0][1], point.attrs)
        for process in log.processes
        for point in process.points
        if point.name == Point.TASK_END and process.pairs
    ]
    messages = {}
    for _, attrs in sorted(ends, key=lambda end: end[0]):
        if attrs.get("outcome") == "failed" and attrs.get("message"):
            messages[str(attrs.get("task"))] = str(attrs["message"])
    return messages


def registered_snapshot(folder: RunFolder) -> Path | None:
    """The version that this run registered, complete with its manifest; None if there is none.

    It need not be the live one: a day that is trained again does not take the place of a later day.
    """
    version = registry_root() / folder.refresh / "versions" / folder.run
    return version if (version / "manifest.json").is_file() else None


def live_record(refresh: str) -> Mapping[str, Any] | None:
    """The registry's newest record of what is live; None if nothing is, or the record cannot be read."""
    records = [path for path in (registry_root() / refresh / "live").glob("*.json") if path.stem.isdigit()]
    if not records:
        return None
    try:
        content = json.loads(max(records, key=lambda path: int(path.stem)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def live_version(refresh: str) -> str | None:
    """The version that is live, None if none is known to be."""
    record = live_record(refresh)
    return None if record is None else record.get("snapshot")
