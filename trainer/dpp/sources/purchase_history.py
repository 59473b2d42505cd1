"""What was known before a day began: the state behind the features, advanced one day at a time.

Every feature of day d comes out of purchases of days before d. The state is replayed from the first day on, so a day's
features do not depend on which days are landed together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer.dpp.sources.purchases import Ids, Purchases

NEVER_DAYS = 400  # "days since" of what never happened; the year has fewer days
SALES_DAYS = 28
SHORT_SALES_DAYS = 7

Numbers = NDArray[np.float64]


class PurchaseHistory:
    """Counts and last days per household, product, category, department and household-product pair."""

    def __init__(self, purchases: Purchases) -> None:
        self._all = purchases
        self.day = 0
        catalogue = purchases.catalogue
        households = len(purchases.household_id)
        self._categories = int(catalogue.category.max()) + 1
        self._departments = int(catalogue.department.max()) + 1
        keys = purchases.household * catalogue.size + purchases.product
        self._pair_keys, self._pair_of_purchase = np.unique(keys, return_inverse=True)
        self._pair_starts = np.searchsorted(self._pair_keys, np.arange(households + 1) * catalogue.size)
        self.pair_times = np.zeros(len(self._pair_keys), dtype=np.int64)
        self.pair_last = np.full(len(self._pair_keys), -NEVER_DAYS, dtype=np.int64)
        self._category_times = np.zeros((households, self._categories), dtype=np.int64)
        self._category_last = np.full((households, self._categories), -NEVER_DAYS, dtype=np.int64)
        self._department_times = np.zeros((households, self._departments), dtype=np.int64)
        self._department_last = np.full((households, self._departments), -NEVER_DAYS, dtype=np.int64)
        self.sales = np.zeros(catalogue.size, dtype=np.int64)
        self._short_sales = np.zeros(catalogue.size, dtype=np.int64)
        self._revenue = np.zeros(catalogue.size)
        self._units = np.zeros(catalogue.size)
        self._last_visit = np.full(households, -NEVER_DAYS, dtype=np.int64)
        self._visits = np.zeros(households, dtype=np.int64)
        self._recent_visits = np.zeros(households, dtype=np.int64)
        self._recent_spend = np.zeros(households)
        self._seen = np.zeros(households, dtype=np.int64)
        self._by_household = np.argsort(purchases.household, kind="stable")
        self._household_starts = np.searchsorted(purchases.household[self._by_household], np.arange(households))

    def advance_to(self, day: int) -> None:
        """Take in every purchase of the days before `day`."""
        while self.day < day:
            self._absorb(self.day)
            self.day += 1

    def _absorb(self, day: int) -> None:
        rows = self._all.of_day(day)
        household, product = self._all.household[rows], self._all.product[rows]
        pairs = self._pair_of_purchase[rows]
        self.pair_times[pairs] += 1
        self.pair_last[pairs] = day
        for codes, times, last in (
            (self._all.catalogue.category, self._category_times, self._category_last),
            (self._all.catalogue.department, self._department_times, self._department_last),
        ):
            np.add.at(times, (household, codes[product]), 1)
            last[household, codes[product]] = day
        np.add.at(self._revenue, product, self._all.spend[rows])
        np.add.at(self._units, product, self._all.units[rows])
        np.add.at(self._seen, household, 1)
        visitors = np.unique(household)
        self._last_visit[visitors] = day
        self._visits[visitors] += 1
        self._move_windows(day)

    def _move_windows(self, day: int) -> None:
        """The trailing windows take in `day` and let go of the day that falls out of them."""
        for of_day, sign in ((day, 1), (day - SALES_DAYS, -1)):
            if of_day >= 0:
                rows = self._all.of_day(of_day)
                np.add.at(self.sales, self._all.product[rows], sign)
                np.add.at(self._recent_spend, self._all.household[rows], sign * self._all.spend[rows])
                self._recent_visits[np.unique(self._all.household[rows])] += sign
        for of_day, sign in ((day, 1), (day - SHORT_SALES_DAYS, -1)):
            if of_day >= 0:
                np.add.at(self._short_sales, self._all.product[self._all.of_day(of_day)], sign)

    def pairs_of(self, households: Ids) -> tuple[Ids, Ids]:
        """Indices of all pairs of some households, and for each the position of its household in `households`."""
        starts, stops = self._pair_starts[households], self._pair_starts[households + 1]
        owner = np.repeat(np.arange(len(households)), stops - starts)
        first = np.cumsum(stops - starts) - (stops - starts)
        return np.arange(len(owner)) - first[owner] + starts[owner], owner

    def product_of_pair(self, pairs: Ids) -> Ids:
        return self._pair_keys[pairs] % self._all.catalogue.size

    def features(self, household: Ids, product: Ids) -> dict[str, Numbers]:
        """Dense features of candidates, by column name."""
        times, last = self._pair_state(household, product)
        category = self._all.catalogue.category[product]
        department = self._all.catalogue.department[product]
        seen = np.maximum(self._seen[household], 1)
        return {
            "days_since_visit": self._days_since(self._last_visit[household]),
            "household_visits_28d": self._recent_visits[household],
            "household_basket_size": self._seen[household] / np.maximum(self._visits[household], 1),
            "household_spend_28d": np.maximum(self._recent_spend[household], 0),
            "times_bought": times,
            "days_since_bought": self._days_since(last),
            "category_times_bought": self._category_times[household, category],
            "days_since_category": self._days_since(self._category_last[household, category]),
            "department_share": self._department_times[household, department] / seen,
            "product_sales_28d": self.sales[product],
            "product_sales_7d": self._short_sales[product],
            "product_price": np.clip(self._revenue[product] / np.maximum(self._units[product], 1), 0, 10_000),
        }

    def _pair_state(self, household: Ids, product: Ids) -> tuple[Ids, Ids]:
        keys = household * self._all.catalogue.size + product
        found = np.minimum(np.searchsorted(self._pair_keys, keys), len(self._pair_keys) - 1)
        known = self._pair_keys[found] == keys
        return np.where(known, self.pair_times[found], 0), np.where(known, self.pair_last[found], -NEVER_DAYS)

    def _days_since(self, last: Ids) -> Ids:
        return np.minimum(self.day - last, NEVER_DAYS)

    def last_store(self, households: Ids) -> Ids:
        """Id of the store of each household's latest purchase; 0 for its first visit."""
        seen = self._seen[households]
        latest = self._by_household[self._household_starts[households] + np.maximum(seen - 1, 0)]
        return np.where(seen > 0, self._all.store[latest], 0)

    def recent_products(self, households: Ids, longest: int) -> tuple[Ids, Ids]:
        """Each household's latest purchases, newest first: lengths, and product ids."""
        seen = self._seen[households]
        lengths = np.minimum(seen, longest)
        back = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        newest = np.repeat(self._household_starts[households] + seen - 1, lengths)
        purchases = self._by_household[newest - back]
        return lengths, self._all.catalogue.product_id[self._all.product[purchases]]

    def usual_products(self, households: Ids, longest: int) -> tuple[Ids, Ids]:
        """What each household bought most often, most often first: lengths, and product ids."""
        pairs, owner = self.pairs_of(households)
        bought = self.pair_times[pairs] > 0
        pairs, owner = pairs[bought], owner[bought]
        order = np.lexsort((-self.pair_last[pairs], -self.pair_times[pairs], owner))
        pairs, owner = pairs[order], owner[order]
        counts = np.bincount(owner, minlength=len(households))
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = pairs[place < longest]
        return np.minimum(counts, longest), self._all.catalogue.product_id[self.product_of_pair(chosen)]

    def recent_categories(self, households: Ids, longest: int) -> tuple[Ids, Ids]:
        """Distinct categories, latest first: lengths, and codes."""
        return _latest(self._category_last[households], self._category_times[households], longest)

    def recent_departments(self, households: Ids, longest: int) -> tuple[Ids, Ids]:
        """Distinct departments, latest first: lengths, and codes."""
        return _latest(self._department_last[households], self._department_times[households], longest)


def _latest(last: Ids, times: Ids, longest: int) -> tuple[Ids, Ids]:
    """Codes by last day, then by how often; both arrays are [households, codes]."""
    order = np.argsort(-(last * 100_000 + times), axis=1, kind="stable")[:, :longest]
    known = np.take_along_axis(times, order, axis=1) > 0
    return known.sum(axis=1), order[known]
