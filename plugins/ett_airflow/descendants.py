"""What was built on a day that has been trained again: its descendants in the warm-start chain are stale.

They are marked, not withdrawn: the live pointer stays where it is, and the runs may be trained again day by day.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ett_airflow.anchors import STALE_FILE
from trainer.atomic_file import replace_text
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RunInfo, SpecError, load_run_spec

STALE_VERSION = 1


def mark_descendants(folder: RunFolder) -> Sequence[str]:
    """Mark as stale every run that was built on an older training of this run's days; their names, oldest first.

    To be called when the run has its anchor; again it marks nothing new.
    """
    runs = _runs(folder.root.parent)
    mine = runs.get(folder.run)
    if mine is None or mine.purpose is not Purpose.DAILY:
        return []
    replaced = {name for name, other in runs.items() if name != folder.run and _was_replaced(other, mine, runs)}
    stale = _built_on(replaced, runs) - _ancestry(folder.run, runs) - replaced
    ordered = sorted(stale, key=lambda name: (runs[name].window.end, name))
    for name in ordered:
        _mark(RunFolder(folder.root.parent / name), replaced & _ancestry(name, runs), by=folder.run)
    return ordered


def why_stale(folder: RunFolder) -> str | None:
    """For people: which day was trained again; None for a run that is not stale."""
    try:
        content = json.loads((folder.root / STALE_FILE).read_text(encoding="utf-8"))
        return f"built on {', '.join(content['built_on'])}, whose days run {content['replaced_by']} has trained again"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "a day that it was built on has been trained again"


def _runs(refresh_root: Path) -> dict[str, RunInfo]:
    found = {}
    for path in refresh_root.glob("*/spec.yaml"):
        try:
            found[path.parent.name] = load_run_spec(path).run
        except SpecError:
            continue  # another release's: nothing that this one trains was built on it
    return found


def _was_replaced(other: RunInfo, mine: RunInfo, runs: dict[str, RunInfo]) -> bool:
    """Whether `other` had trained days of `mine`, and is not what `mine` itself goes back to."""
    overlaps = other.window.start < mine.window.end and mine.window.start < other.window.end
    return overlaps and other.purpose is Purpose.DAILY and other.run not in _ancestry(mine.run, runs)


def _built_on(origins: Iterable[str], runs: dict[str, RunInfo]) -> set[str]:
    origins = set(origins)
    return {name for name in runs if name not in origins and origins & _ancestry(name, runs)}


def _ancestry(name: str, runs: dict[str, RunInfo]) -> set[str]:
    """The run and all that it goes back to."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        start = runs[name].warm_start if name in runs else None
        if start is None:
            break
        name = start.run
    return seen


def _mark(folder: RunFolder, built_on: Iterable[str], *, by: str) -> None:
    path = folder.root / STALE_FILE
    if path.exists():
        return
    content = {
        "version": STALE_VERSION,
        "built_on": sorted(built_on),
        "replaced_by": by,
        "at_unix_ns": time.time_ns(),
    }
    replace_text(path, json.dumps(content, indent=1) + "\n")
