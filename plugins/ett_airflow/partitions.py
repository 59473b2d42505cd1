"""Which days of a refresh's data have landed, with rows to train on or closed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

LANDING_MARKER = "_LANDED.json"


def landed_days(root: Path) -> Sequence[date]:
    """Days of the partitions below `root` that carry their landing marker, in order; none for a missing folder.

    Days that landed closed (nothing could happen on them) have no rows and are left out.
    """
    days = []
    for marker in root.glob(f"day=*/{LANDING_MARKER}"):
        try:
            day = date.fromisoformat(marker.parent.name.removeprefix("day="))
        except ValueError:
            continue  # a stray folder is no partition
        if not _closed_reason(marker):
            days.append(day)
    return sorted(days)


def missing_days(root: Path, days: Iterable[date]) -> Sequence[date]:
    """Those of `days` that have not landed, in order."""
    return [day for day in sorted(days) if not _marker(root, day).is_file()]


def closed_days(root: Path, days: Iterable[date]) -> dict[date, str]:
    """Those of `days` that landed closed, and why."""
    reasons = {day: _closed_reason(_marker(root, day)) for day in sorted(days)}
    return {day: reason for day, reason in reasons.items() if reason}


def _marker(root: Path, day: date) -> Path:
    return root / f"day={day.isoformat()}" / LANDING_MARKER


def _closed_reason(marker: Path) -> str | None:
    try:
        content: Any = json.loads(marker.read_text(encoding="utf-8"))
        return str(content["closed"]) if content.get("closed") else None
    except (OSError, ValueError, AttributeError, KeyError):
        return None  # the schema check says what is wrong with a damaged marker
