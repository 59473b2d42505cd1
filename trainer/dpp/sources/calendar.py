"""Old data made new: a data set's calendar moved by whole weeks, so that weekdays stay and its end is about now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from trainer.dpp.errors import LandingError
from trainer.dpp.partitions import write_json

CALENDAR_VERSION = 1
_CALENDAR_NAME = "_CALENDAR.json"


@dataclass(frozen=True)
class ShiftedCalendar:
    """`first` and `last` are original days; a landed day is its original plus `weeks`."""

    first: date
    last: date
    weeks: int

    @classmethod
    def ending_at(cls, first: date, last: date, newest: date) -> ShiftedCalendar:
        """The smallest shift for which the last original day comes out at `newest` or later."""
        return cls(first, last, -(-(newest - last).days // 7))

    @classmethod
    def of(cls, root: Path, first: date, last: date, newest: date) -> ShiftedCalendar:
        """The calendar of a data root: decided at the first preparation, and the same ever after.

        Raises:
            LandingError: the root belongs to other data, or its calendar is damaged.
        """
        path = root / _CALENDAR_NAME
        if not path.is_file():
            calendar = cls.ending_at(first, last, newest)
            write_json(
                path, {"version": CALENDAR_VERSION, "first": str(first), "last": str(last), "weeks": calendar.weeks}
            )
            return calendar
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != CALENDAR_VERSION or (data["first"], data["last"]) != (str(first), str(last)):
                raise ValueError(f"it was made for {data['first']} to {data['last']}, version {data['version']}")
            return cls(first, last, int(data["weeks"]))
        except (KeyError, TypeError, ValueError) as error:
            raise LandingError(
                f"{path}: not this source's calendar ({error}); remove {root} and prepare again"
            ) from error

    @property
    def offset(self) -> timedelta:
        return timedelta(weeks=self.weeks)

    def original(self, day: date) -> date:
        """The original day of a landed day."""
        return day - self.offset

    @property
    def landed_first(self) -> date:
        return self.first + self.offset

    @property
    def landed_last(self) -> date:
        return self.last + self.offset
