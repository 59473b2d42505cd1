"""Why a snapshot was refused or cannot be used: one hierarchy; each message says what to do next."""

from __future__ import annotations

from pathlib import Path

from trainer.storage import StoragePath


class PublishError(Exception):
    """Publishing, or using what was published, failed."""


class NoAnchorError(PublishError):
    """The run has no durable anchor checkpoint, so it has not succeeded (case C4)."""

    def __init__(self, path: StoragePath, detail: str) -> None:
        super().__init__(f"{path}: no anchor to publish ({detail}); let the training job finish first")
        self.path = path


class ForeignAnchorError(PublishError):
    """The anchor in the run folder was written by another run or another spec."""

    def __init__(self, path: StoragePath, *, what: str, anchor: str, run_folder: str) -> None:
        super().__init__(
            f"{path}: its {what} is {anchor}, the run folder's {run_folder}; nothing was published, train the run again"
        )
        self.path = path


class SnapshotError(PublishError):
    """A snapshot that is damaged, of another version, or of another model."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path


class ValidationError(PublishError):
    """The snapshot does not do what the trainer's model did, or not well enough; nothing was registered."""


class MissingRowsError(ValidationError):
    """The snapshot and the trainer did not score the same holdout rows."""

    def __init__(self, *, scored: int, reference: int, first: str) -> None:
        super().__init__(
            f"the snapshot scored {scored} holdout rows, the trainer's reference has {reference}; first that differs: "
            f"{first}. Was the data changed since the run, or the spec? Nothing was registered"
        )
        self.scored = scored
        self.reference = reference


class PredictionDifferenceError(ValidationError):
    """A prediction is not the trainer's."""

    def __init__(self, *, difference: float, limit: float, row: str, above: int, rows: int) -> None:
        super().__init__(
            f"{above} of {rows} predictions differ from the trainer's by more than "
            f"publishing.max_prediction_difference = {limit:g}, the largest by {difference:.3g} at {row}. "
            "Does the model depend on the order of a KeyedTensor, on the batch, or on chance? Nothing was registered"
        )
        self.difference = difference
        self.limit = limit


class QualityError(ValidationError):
    """The holdout AUC is below the gate, or not defined."""

    def __init__(self, *, auc: float | None, limit: float, rows: int) -> None:
        told = "is not defined, its labels are all alike" if auc is None else f"is {auc:.4f}"
        super().__init__(
            f"the AUC over {rows} holdout rows {told}; publishing.min_holdout_auc asks for {limit:g}. "
            "Look at the run's metrics and data; nothing was registered, the live snapshot stays"
        )
        self.auc = auc
        self.limit = limit


class RegistryError(PublishError):
    """The registry refuses, or does not hold what was asked for."""


class InputError(PublishError):
    """An input file that the snapshot cannot score; names the column."""
