"""Validation: the snapshot, opened from the disk, against the trainer's own predictions and the quality gate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from publish.errors import MissingRowsError, PredictionDifferenceError, QualityError
from publish.scoring import BATCH_ROWS, logits_of
from publish.snapshot import Metrics, SnapshotManifest, load_model
from trainer.checkpoint.reference import ROW_IDENTITY, probabilities, read_reference, reference_table
from trainer.dpp.cursor import Interval
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import read_holdout
from trainer.storage import StoragePath


def validate(snapshot: Path, plan: ReadPlan, anchor: StoragePath) -> Metrics:
    """Score every holdout row with the snapshot and compare row by row with the anchor's reference.

    Raises:
        ValidationError: other rows, a prediction further off than the spec allows, or too low an AUC.
        DppError: the holdout cannot be read as it was planned.
    """
    publishing = SnapshotManifest.read(snapshot).spec.publishing
    scored = score_holdout(snapshot, plan)
    difference = compare(scored, read_reference(anchor), limit=publishing.max_prediction_difference)
    auc = _auc(scored["label"].to_numpy(), scored["probability"].to_numpy())
    if auc is None or auc < publishing.min_holdout_auc:
        raise QualityError(auc=auc, limit=publishing.min_holdout_auc, rows=scored.num_rows)
    return Metrics(holdout_auc=auc, holdout_rows=scored.num_rows, max_prediction_difference=difference)


def score_holdout(snapshot: Path, plan: ReadPlan) -> pa.Table:
    """The snapshot's predictions in the form of a reference, in the order of the plan."""
    spec = SnapshotManifest.read(snapshot).spec
    module = load_model(snapshot)
    rows: list[Interval] = []
    labels, logits = [np.empty(0, dtype=np.float32)], [np.empty(0, dtype=np.float32)]
    with read_holdout(plan, spec.contract, rank=0, world_size=1, batch_size=BATCH_ROWS) as reader:
        for host in reader:
            rows.extend(host.consumed)
            labels.append(host.labels)
            logits.append(logits_of(module, spec, host))
    return reference_table(rows=rows, labels=np.concatenate(labels), logits=np.concatenate(logits))


def compare(scored: pa.Table, reference: pa.Table, *, limit: float) -> float:
    """The largest difference of two predictions of one row.

    Raises:
        MissingRowsError, PredictionDifferenceError
    """
    ours, theirs = _identity(scored), _identity(reference)
    if not np.array_equal(ours, theirs):
        raise MissingRowsError(scored=len(ours), reference=len(theirs), first=_first_difference(ours, theirs))
    differences = np.abs(probabilities(scored["logit"].to_numpy()) - reference["probability"].to_numpy())
    if not len(differences):
        return 0.0
    # A NaN is further off than any number.
    worst = int(np.argmax(np.where(np.isnan(differences), np.inf, differences)))
    above = int(np.sum(~(differences <= limit)))
    if above:
        raise PredictionDifferenceError(
            difference=float(differences[worst]), limit=limit, row=_named(ours[worst]), above=above, rows=len(ours)
        )
    return float(differences[worst])


def _identity(table: pa.Table) -> NDArray[np.int64]:
    return np.stack([table[name].to_numpy().astype(np.int64) for name in ROW_IDENTITY], axis=1)


def _first_difference(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> str:
    shared = min(len(ours), len(theirs))
    different = np.flatnonzero((ours[:shared] != theirs[:shared]).any(axis=1))
    position = int(different[0]) if len(different) else shared
    longer = ours if len(ours) > shared else theirs
    return _named(ours[position] if len(different) else longer[position])


def _named(row: NDArray[np.int64]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(ROW_IDENTITY, row.tolist(), strict=True))


def _auc(labels: NDArray[np.float32], predicted: NDArray[np.float64]) -> float | None:
    """None where it is not defined: labels of one kind only, or none at all."""
    kinds = np.unique(labels)
    return float(roc_auc_score(labels, predicted)) if len(kinds) == 2 else None
