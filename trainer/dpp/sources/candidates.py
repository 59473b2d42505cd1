"""Which products a household is asked about: what it bought, and seeded negatives by a named rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.dpp.sources.purchase_history import SALES_DAYS, PurchaseHistory
from trainer.dpp.sources.purchases import Ids, Purchases

POPULAR_PER_POSITIVE = 4
USUAL_PER_POSITIVE = 1
USUAL_DAYS = 84
EXPONENT = 0.75
SEED = 20_170_101

NEGATIVE_RULE = (
    f"candidates are products that anyone bought in the trailing {SALES_DAYS} days; per product bought, "
    f"{POPULAR_PER_POSITIVE} drawn by popularity^{EXPONENT} over those days, and {USUAL_PER_POSITIVE} of the products "
    f"that the household itself bought in the trailing {USUAL_DAYS} days"
)


@dataclass(frozen=True)
class Candidates:
    """Rows of one day in random order, by household and product index; `label` is 1 for what was bought."""

    household: Ids
    product: Ids
    label: Ids


def draw_candidates(purchases: Purchases, history: PurchaseHistory, *, seed: int = SEED) -> Candidates:
    """The candidates of the day that `history` stands before; the same for the same seed and day."""
    day = history.day
    random = np.random.default_rng([seed, (purchases.first_day.toordinal() + day)])
    rows = purchases.of_day(day)
    offered = history.sales > 0
    bought = offered[purchases.product[rows]]
    household, product = purchases.household[rows][bought], purchases.product[rows][bought]
    positives = household * purchases.catalogue.size + product
    drawn = np.concatenate(
        [
            positives,
            _usual(purchases, history, household, offered, random),
            _popular(purchases, history, household, random),
        ]
    )
    keys = np.unique(drawn)
    random.shuffle(keys)  # in a log, one household's rows do not stand together
    return Candidates(
        household=keys // purchases.catalogue.size,
        product=keys % purchases.catalogue.size,
        label=np.isin(keys, positives).astype(np.int64),
    )


def _popular(purchases: Purchases, history: PurchaseHistory, household: Ids, random: np.random.Generator) -> Ids:
    weights = np.cumsum(history.sales.astype(np.float64) ** EXPONENT)
    owners = np.repeat(household, POPULAR_PER_POSITIVE)
    product = np.searchsorted(weights, random.random(len(owners)) * weights[-1], side="right")
    return owners * purchases.catalogue.size + np.minimum(product, purchases.catalogue.size - 1)


def _usual(
    purchases: Purchases, history: PurchaseHistory, household: Ids, offered: np.ndarray, random: np.random.Generator
) -> Ids:
    """As many of a household's own products as it bought products; which of them were bought today plays no part."""
    visitors, counts = np.unique(household, return_counts=True)
    pairs, owner = history.pairs_of(visitors)
    product = history.product_of_pair(pairs)
    usual = offered[product] & (history.pair_last[pairs] >= history.day - USUAL_DAYS)
    product, owner = product[usual], owner[usual]
    order = np.lexsort((random.random(len(owner)), owner))
    product, owner = product[order], owner[order]
    sizes = np.bincount(owner, minlength=len(visitors))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = place < USUAL_PER_POSITIVE * counts[owner]
    return visitors[owner[chosen]] * purchases.catalogue.size + product[chosen]
