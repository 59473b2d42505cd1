"""Which days a source lands, and the landing itself: idempotent, one day at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainer.dpp.contract import contract_hash
from trainer.dpp.errors import LandingError
from trainer.dpp.partitions import LandingMarker, land, landed_days, marker_path
from trainer.spec import RefreshSpec

TRAILING_DAYS = 14  # landed before the first window, so that its first day has neighbours to be compared with


@dataclass(frozen=True)
class LandingRequest:
    """Days asked for, all of them inclusive: `first` None means as far back as the first window needs."""

    through: date
    first: date | None = None

    def wanted(self, spec: RefreshSpec, root: Path, oldest: date, newest: date) -> list[date]:
        """The days to have landed, oldest first, within what the source has.

        Raises:
            LandingError: the source has none of them.
        """
        if self.through > newest:
            again = f"remove {root} and prepare again to move its calendar to the present"
            print(f"{spec.name}: the source's data ended on {newest}; {again}", file=sys.stderr)
        last = min(self.through, newest)
        first = self.first or self._default_first(spec, root, last)
        days = [max(first, oldest) + timedelta(days=n) for n in range((last - max(first, oldest)).days + 1)]
        if not days:
            raise LandingError(
                f"{spec.name}: the source has days {oldest} to {newest}, asked for {first} to {self.through}; "
                f"to move its calendar to the present again, remove {root} and prepare again"
            )
        return days

    def _default_first(self, spec: RefreshSpec, root: Path, last: date) -> date:
        """What has landed before stays the beginning: later calls only add days at the end (and fill holes)."""
        window_first = last - timedelta(days=spec.data.first_window_days + TRAILING_DAYS - 1)
        return min([*landed_days(root)[:1], window_first])


@dataclass(frozen=True)
class DayOfData:
    """One day as a source makes it: `closed` says why there are no rows."""

    day: date
    table: pa.Table
    source: dict[str, Any]
    closed: str | None = None


def missing(root: Path, spec: RefreshSpec, days: Iterable[date]) -> list[date]:
    """Those of `days` that have not landed for this contract."""
    expected = contract_hash(spec.contract)
    return [day for day in days if _landed_contract(root, day) != expected]


def _landed_contract(root: Path, day: date) -> str | None:
    try:
        return LandingMarker.load(marker_path(root, day)).contract
    except (FileNotFoundError, LandingError):
        return None


def land_all(root: Path, spec: RefreshSpec, made: Iterator[DayOfData], total: int) -> list[LandingMarker]:
    """Land each day as soon as it is made; says on standard error how far it is."""
    markers = []
    for number, day in enumerate(made, start=1):
        markers.append(land(root, day.day, day.table, spec.contract, source=day.source, closed=day.closed))
        if number % 10 == 0 or number == total:
            rows = sum(marker.rows for marker in markers)
            print(f"{spec.name}: landed {number} of {total} days, {rows:,} rows", file=sys.stderr, flush=True)
    return markers
