"""Where the pages are: their addresses for Airflow and for each other, and the run folder that an address names."""

from __future__ import annotations

import json
from urllib.parse import urlencode, urlsplit

from airflow.configuration import conf

from ett_airflow.generation import RunIdentity, RunNameTakenError
from trainer.run_folder import RunFolder, RunFolderError, runs_root

PREFIX = "/ett"


def from_outside(page: str, query: str = "") -> str:
    """A page's path for Airflow's own links, below the path that `api.base_url` may have."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{base}{PREFIX}/{page}" + (f"?{query}" if query else "")


def run_address(dag_id: str, run_id: str) -> str:
    """The page of a run, seen from the other pages."""
    return f"run?{urlencode({'dag_id': dag_id, 'run_id': run_id})}"


def task_address(dag_id: str, run_id: str, task_id: str) -> str:
    """The page of a task of a run, seen from the other pages."""
    return f"task?{urlencode({'dag_id': dag_id, 'run_id': run_id, 'task_id': task_id})}"


class NoSuchRunError(ValueError):
    """The names lead to no run folder that could be this run's."""


def folder_named(dag_id: str, run_id: str) -> RunFolder:
    """The run folder below ROOT, which need not exist yet.

    Raises:
        NoSuchRunError: names that are none, that lead elsewhere, or whose folder is another run's.
    """
    try:
        folder = RunIdentity(dag_id, run_id).folder
    except (RunFolderError, RunNameTakenError):
        raise NoSuchRunError(run_id) from None
    if not folder.root.resolve().is_relative_to(runs_root().resolve()):
        raise NoSuchRunError(run_id)
    if _owner(folder, run_id) != run_id:
        raise NoSuchRunError(run_id)
    return folder


def _owner(folder: RunFolder, otherwise: str) -> str:
    """Which Airflow run the folder says it is: two ids may give one name, and the first has it."""
    try:
        told = json.loads((folder.root / "airflow.json").read_text(encoding="utf-8"))
        return str(told["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise  # not begun, or made by hand
