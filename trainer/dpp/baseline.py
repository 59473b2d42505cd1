"""The target-encoding baseline: what smoothed label means alone say about the holdout. A model must beat it.

Each encoding replaces a value by the label's mean over the training rows that have it, shrunk towards the base rate:
every categorical id, the entity, whether an id stands in a list that shares its table, and whether a count is above
zero (for Complete Journey: "the household already bought this product").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.dpp.cursor import count, steps_for
from trainer.dpp.decode import HostBatch
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import PartitionReader, read_holdout
from trainer.spec import Contract

_BATCH_ROWS = 8192
_SMALL_CODES = 1 << 22
_PRIOR_ROWS = 20.0  # rows of the base rate that every value starts with

Codes = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class _Rows:
    labels: NDArray[np.float32]
    codes: Codes


def target_encoding_auc(plan: ReadPlan, contract: Contract) -> dict[str, float]:
    """AUC on the plan's holdout rows of each encoding fitted on its training rows.

    Also "combined" (the sum of the encodings' log-odds) and "best", the largest single one.

    Raises:
        PlanError, ReaderError: as the reader does.
    """
    from sklearn.metrics import roc_auc_score  # a second to import, and needed here only

    training, holdout = _training_rows(plan, contract), _holdout_rows(plan, contract)
    scores: dict[str, float] = {}
    combined = np.zeros(len(holdout.labels))
    for name, codes in training.codes.items():
        lift = _log_odds(codes, training.labels, holdout.codes[name])
        combined += lift
        scores[name] = float(roc_auc_score(holdout.labels, lift))
    scores["best"] = max(scores.values())
    scores["combined"] = float(roc_auc_score(holdout.labels, combined))
    return scores


def _log_odds(codes: NDArray[np.int64], labels: NDArray[np.float32], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """The smoothed log-odds of each wanted code over those of the base rate; 0 for codes never seen."""
    known, position = _distinct(codes)
    rows, positives = np.bincount(position), np.bincount(position, weights=labels)
    base = float(labels.mean())
    mean = (positives + base * _PRIOR_ROWS) / (rows + _PRIOR_ROWS)
    lift = np.log(mean / (1 - mean)) - np.log(base / (1 - base))
    found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[found] == wanted, lift[found], 0.0)


def _distinct(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct codes and each row's place among them; without sorting the rows where codes are small."""
    largest = int(codes.max())
    if int(codes.min()) < 0 or largest > _SMALL_CODES:
        known, position = np.unique(codes, return_inverse=True)
        return known, position
    known = np.flatnonzero(np.bincount(codes, minlength=largest + 1))
    place = np.zeros(largest + 1, dtype=np.int64)
    place[known] = np.arange(len(known))
    return known, place[codes]


def _training_rows(plan: ReadPlan, contract: Contract) -> _Rows:
    intervals = plan.intervals()
    steps = steps_for(count(intervals), _BATCH_ROWS)
    with PartitionReader(plan, contract, intervals, batch_size=_BATCH_ROWS, steps=steps) as reader:
        return _collect(reader, contract)


def _holdout_rows(plan: ReadPlan, contract: Contract) -> _Rows:
    with closing(read_holdout(plan, contract, rank=0, world_size=1, batch_size=_BATCH_ROWS)) as reader:
        return _collect(reader, contract)


def _collect(batches: Iterator[HostBatch], contract: Contract) -> _Rows:
    labels, codes = [], []
    for batch in batches:
        labels.append(batch.labels)
        codes.append(_codes(batch, contract))
    return _Rows(np.concatenate(labels), {name: np.concatenate([part[name] for part in codes]) for name in codes[0]})


def _codes(batch: HostBatch, contract: Contract) -> Codes:
    lengths = batch.lengths.reshape(len(contract.sparse), batch.rows).astype(np.int64)
    ends = np.cumsum(lengths.sum(axis=1))
    values = dict(zip((column.name for column in contract.sparse), np.split(batch.values, ends[:-1]), strict=True))
    rows_of = {column.name: np.repeat(np.arange(batch.rows), lengths[at]) for at, column in enumerate(contract.sparse)}
    codes: Codes = {contract.entity.name: batch.entities}
    codes |= {column.name: values[column.name] for column in contract.categorical}
    for column in contract.jagged:
        if column.table in codes:
            same = codes[column.table][rows_of[column.name]] == values[column.name]
            inside = np.bincount(rows_of[column.name][same], minlength=batch.rows) > 0
            codes[f"{column.table} in {column.name}"] = inside.astype(np.int64)
    for at, column in enumerate(contract.dense):
        if column.min == 0:
            codes[f"{column.name} > 0"] = (batch.dense[:, at] > 0).astype(np.int64)
    return codes
