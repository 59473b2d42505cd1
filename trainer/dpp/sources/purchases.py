"""Complete Journey's transactions as sorted arrays: one purchase per household, product and day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.dpp.errors import SourceError

_STORE_CLOCK = timedelta(hours=-5)  # the transactions carry UTC; the stores and their days are on Eastern Standard Time
_DAY_US = 86_400_000_000
_TRANSACTION_COLUMNS = ["household_id", "store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"]

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Catalogue:
    """What is known of each product for all time, by product index. Codes start at 1; 0 is unknown."""

    product_id: Ids
    manufacturer_id: Ids
    department: Ids
    category: Ids
    kind: Ids
    brand: Ids

    @property
    def size(self) -> int:
        return len(self.product_id)


@dataclass(frozen=True)
class Purchases:
    """Purchases in order of day, household, time and product. `household` and `product` are indices, `store` is an id.

    `time_us` is the store's clock in microseconds since midnight; `day_starts[d]:day_starts[d + 1]` are day d's rows.
    """

    first_day: date
    day: Ids
    household: Ids
    product: Ids
    store: Ids
    time_us: Ids
    spend: NDArray[np.float64]
    units: NDArray[np.float64]
    household_id: Ids
    catalogue: Catalogue
    day_starts: Ids

    @property
    def days(self) -> int:
        return len(self.day_starts) - 1

    @property
    def last_day(self) -> date:
        return self.first_day + timedelta(days=self.days - 1)

    def of_day(self, day: int) -> slice:
        return slice(int(self.day_starts[day]), int(self.day_starts[day + 1]))


def load_purchases(folder: Path) -> Purchases:
    """Read the package's tables.

    Raises:
        SourceError: a table is missing or not as expected.
    """
    try:
        transactions = pq.read_table(folder / "transactions.parquet", columns=_TRANSACTION_COLUMNS)
        products = pq.read_table(folder / "products.parquet")
        return purchases_of(transactions, products)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise SourceError(
            f"{folder}: not the Complete Journey tables ({error}); remove it and prepare again"
        ) from error


def purchases_of(transactions: pa.Table, products: pa.Table) -> Purchases:
    """Purchases out of the package's tables."""
    catalogue = _catalogue(products)
    known = pc.is_in(transactions["product_id"], value_set=pa.array(catalogue.product_id))
    transactions = transactions.filter(known)
    local = pc.cast(transactions["transaction_timestamp"], pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()
    local = local + _STORE_CLOCK // timedelta(microseconds=1)
    household_id, household = np.unique(transactions["household_id"].to_numpy(), return_inverse=True)
    product = np.searchsorted(catalogue.product_id, transactions["product_id"].to_numpy())
    first = int(local.min()) // _DAY_US
    day = local // _DAY_US - first
    order = np.lexsort((local, product, household, day))
    starts = _group_starts(day[order], household[order], product[order])
    rows = order[starts]
    spend = np.add.reduceat(transactions["sales_value"].to_numpy()[order], starts)
    units = np.add.reduceat(transactions["quantity"].to_numpy()[order].astype(np.float64), starts)
    by_time = np.lexsort((product[rows], local[rows], household[rows], day[rows]))
    rows = rows[by_time]
    return Purchases(
        first_day=datetime.fromtimestamp(first * 86_400, UTC).date(),
        day=day[rows],
        household=household[rows],
        product=product[rows],
        store=transactions["store_id"].to_numpy()[rows],
        time_us=local[rows] % _DAY_US,
        spend=spend[by_time],
        units=units[by_time],
        household_id=household_id,
        catalogue=catalogue,
        day_starts=np.searchsorted(day[rows], np.arange(int(day.max()) + 2)),
    )


def _group_starts(*keys: Ids) -> Ids:
    """Where a new combination of the sorted keys begins."""
    changed = np.zeros(len(keys[0]), dtype=bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)


def _catalogue(products: pa.Table) -> Catalogue:
    products = products.sort_by("product_id")
    return Catalogue(
        product_id=products["product_id"].to_numpy(),
        manufacturer_id=products["manufacturer_id"].to_numpy(),
        department=_codes(products["department"]),
        category=_codes(products["product_category"]),
        kind=_codes(products["product_type"]),
        brand=_codes(products["brand"]),
    )


def _codes(texts: pa.ChunkedArray) -> Ids:
    """1, 2, ... for the texts in alphabetical order; 0 where there is none."""
    known = pc.unique(texts.drop_null()).sort()
    positions = pc.index_in(texts, value_set=known)
    return pc.fill_null(pc.add(pc.cast(positions, pa.int64()), 1), 0).to_numpy()
