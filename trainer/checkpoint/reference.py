"""The trainer's own predictions on the holdout, kept beside the anchor: what a snapshot is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.checkpoint.durable import FileRecord, HashedFile
from trainer.checkpoint.errors import CheckpointError, IncoherentSaveError
from trainer.checkpoint.manifest import Manifest
from trainer.dpp.cursor import Interval
from trainer.storage import StoragePath, opened

REFERENCE_SCHEMA = pa.schema(
    [
        pa.field("file", pa.int32(), nullable=False),  # position in the read plan
        pa.field("row_group", pa.int32(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # ordinal among the row group's holdout rows
        pa.field("label", pa.float32(), nullable=False),
        pa.field("logit", pa.float32(), nullable=False),
        pa.field("probability", pa.float64(), nullable=False),
    ]
)


ROW_IDENTITY = ("file", "row_group", "row")


def reference_table(*, rows: Iterable[Interval], labels: Any, logits: Any) -> pa.Table:
    """One rank's part: `rows` are the holdout rows in the order scored (the batches' `consumed`), N in all;
    `labels` and `logits` float32 [N], as arrays or CPU tensors.

    Raises:
        ValueError: as many labels or logits as rows are needed.
    """
    logit = np.asarray(logits, dtype=np.float32)
    columns = [*row_identity(rows), np.asarray(labels, dtype=np.float32), logit, probabilities(logit)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(
            f"{len(columns[0])} rows, {len(columns[3])} labels and {len(logit)} logits do not belong together"
        )
    return pa.table(columns, schema=REFERENCE_SCHEMA)


def row_identity(rows: Iterable[Interval]) -> list[np.ndarray]:
    """The columns of ROW_IDENTITY, one entry for each row of the intervals."""
    intervals = list(rows)
    sizes = [interval.rows for interval in intervals]
    empty = [np.empty(0, dtype=np.int64)]  # so that a rank without holdout rows has columns too
    return [
        np.repeat(np.array([interval.file for interval in intervals], dtype=np.int32), sizes),
        np.repeat(np.array([interval.row_group for interval in intervals], dtype=np.int32), sizes),
        np.concatenate([np.arange(each.start, each.stop, dtype=np.int64) for each in intervals] or empty),
    ]


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Sigmoid in float64 of float32 logits [N]."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits.astype(np.float64))))


def read_reference(anchor: StoragePath) -> pa.Table:
    """The merged reference of an anchor, in the order of the read plan.

    Raises:
        CheckpointError: the anchor has none, or it is missing, not Parquet, or of another schema.
    """
    name = Manifest.read(anchor).reference
    if name is None:
        raise CheckpointError(anchor, "holds no predictions on the holdout, so it is no anchor; train the run again")
    path = anchor / name
    try:
        table = _read(path)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(path, f"cannot be read ({error}); train the run again") from None
    if not table.schema.equals(REFERENCE_SCHEMA):
        raise CheckpointError(path, f"its columns are {table.schema.names}, not {REFERENCE_SCHEMA.names}")
    return table


def write_reference(path: StoragePath, part: pa.Table) -> FileRecord:
    """Write one rank's rows, which rank 0 merges at the commit.

    Raises:
        IncoherentSaveError: `part` is no `reference_table()`.
        CheckpointWriteError
    """
    if not part.schema.equals(REFERENCE_SCHEMA):
        raise IncoherentSaveError(path, f"the reference is no reference_table(): {part.schema.names}")
    with HashedFile(path) as stream:
        pq.write_table(part, pa.PythonFile(stream, mode="w"))
    return stream.record()


def merge_references(parts: Sequence[StoragePath], into: StoragePath) -> FileRecord:
    """Merge the ranks' parts in the order of the read plan.

    Raises:
        IncoherentSaveError: a row that was scored twice.
        CheckpointWriteError
    """
    merged = pa.concat_tables([_read(part) for part in parts])
    merged = merged.sort_by([(name, "ascending") for name in ROW_IDENTITY])
    distinct = merged.group_by(list(ROW_IDENTITY)).aggregate([]).num_rows
    if distinct != merged.num_rows:
        raise IncoherentSaveError(into, f"{merged.num_rows - distinct} holdout rows were scored twice")
    return write_reference(into, merged)


def _read(path: StoragePath) -> pa.Table:
    with opened(path) as stream:
        return pq.read_table(pa.PythonFile(stream, mode="r"))
