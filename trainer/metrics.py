"""Normalized entropy and AUC of a stream of predictions, in accumulators that add up over ranks and attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BINS = 4096
LOGIT_LIMIT = 12.0  # a bin is 0.006 logits wide: AUC is right to about 1e-4


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Quality of predictions of `rows` rows; a value is None where it is not defined (labels of one kind only)."""

    ne: float | None
    auc: float | None
    rows: int
    positives: int

    def __str__(self) -> str:
        ne, auc = (f"{value:.4f}" if value is not None else "n/a" for value in (self.ne, self.auc))
        return f"NE {ne}, AUC {auc} over {self.rows:,} rows"

    def as_attrs(self) -> dict[str, Any]:
        return {"ne": self.ne, "auc": self.auc, "rows": self.rows, "positives": self.positives}


class QualityAccumulator:
    """Sums behind normalized entropy and AUC, for binary labels (0 or 1).

    Normalized entropy is the mean log loss divided by the entropy of the mean label: 1 is as good as always predicting
    the base rate, lower is better (He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, 2014,
    section 3; TorchRec's NE). AUC is the probability that a positive row's logit is above a negative's, ties counting
    half, over logits sorted into fixed bins, so that a long stream needs little memory.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        # Log loss, then negatives by bin, then positives by bin.
        self._sums = torch.zeros(1 + 2 * BINS, dtype=torch.float64, device=device)
        self._one = torch.ones((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in one batch: `logits` and `labels`, float `[B]`, on this accumulator's device. Waits for no device."""
        logits, positive = logits.detach().float(), labels > 0.5
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, positive.float(), reduction="sum")
        scaled = (logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT) + LOGIT_LIMIT) * ((BINS - 1) / (2 * LOGIT_LIMIT))
        index = 1 + scaled.nan_to_num(0.0).to(torch.int64) + positive * BINS
        self._sums.index_add_(0, index, self._one.expand(len(index)))
        self._sums[0] += loss

    @property
    def sums(self) -> torch.Tensor:
        """All sums as one float64 vector; adding vectors merges accumulators."""
        return self._sums

    def quality(self) -> Quality:
        """What the sums say."""
        return quality_of(self._sums)

    def load(self, sums: Sequence[float]) -> None:
        """Go on from an earlier accumulator's sums.

        Raises:
            ValueError: they are of another number of bins.
        """
        vector = torch.tensor(sums, dtype=torch.float64)
        if vector.shape != self._sums.shape:
            raise ValueError(f"metric sums of {len(vector)} numbers, this release has {len(self._sums)}")
        self._sums.copy_(vector)


def quality_of(sums: torch.Tensor) -> Quality:
    """Normalized entropy and AUC from an accumulator's sums, possibly added over ranks."""
    values = sums.cpu().numpy()
    negative, positive = values[1 : 1 + BINS], values[1 + BINS :]
    negatives, positives = negative.sum(), positive.sum()
    rows = negatives + positives
    ne = auc = None
    if negatives and positives:
        rate = positives / rows
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        ne = float(values[0] / rows / entropy)
        below = np.cumsum(negative) - negative / 2
        auc = float((positive * below).sum() / (negatives * positives))
    return Quality(ne=ne, auc=auc, rows=int(rows), positives=int(positives))
