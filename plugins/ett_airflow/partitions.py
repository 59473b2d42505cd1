"""Which days of a refresh's data have landed with rows to train on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path

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
        if not _is_closed(marker):
            days.append(day)
    return sorted(days)


def _is_closed(marker: Path) -> bool:
    try:
        return bool(json.loads(marker.read_text(encoding="utf-8")).get("closed"))
    except (OSError, ValueError, AttributeError):
        return False  # the schema check says what is wrong with a damaged marker
