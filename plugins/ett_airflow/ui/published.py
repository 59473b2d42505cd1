"""How fresh a refresh's model is: the end of the data window behind what is live in the registry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from ett_airflow.outcome import live_record


@dataclass(frozen=True, kw_only=True)
class Published:
    """The live snapshot: the run that made it, and the first day that it has not seen."""

    version: str
    window_end: date

    def age_ns(self, now_ns: int) -> int:
        """From the end of its data to now."""
        end = datetime(self.window_end.year, self.window_end.month, self.window_end.day, tzinfo=UTC)
        return now_ns - int(end.timestamp()) * 10**9


def published(refresh: str) -> Published | None:
    """What is live; None if nothing ever was, or its record cannot be read."""
    record = live_record(refresh)
    if record is None:
        return None
    try:
        return Published(version=str(record["snapshot"]), window_end=date.fromisoformat(record["window"][1]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
