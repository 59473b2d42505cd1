"""From a Parquet record batch to the arrays a batch is made of: ids hashed to table rows, dense values transformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.dpp.cursor import Interval
from trainer.dpp.errors import ReaderError
from trainer.dpp.hashing import table_rows
from trainer.spec import Column, Contract, Hashing, Role, Transform


@dataclass(frozen=True)
class HostBatch:
    """One step's rows of one rank, in host memory.

    With B rows, D dense columns and K sparse keys (contract.sparse order): `dense` float32 [B, D], `labels` float32
    [B], `entities` int64 [B], `values` int64 [sum of lengths] and `lengths` int32 [K * B], both key-major as
    KeyedJaggedTensor wants them. `consumed` are the rows of this batch, `remaining` what its rank still has to read
    after it: the state that a checkpoint of this step saves.
    """

    rows: int
    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    entities: NDArray[np.int64]
    values: NDArray[np.int64]
    lengths: NDArray[np.int32]
    consumed: tuple[Interval, ...]
    remaining: tuple[Interval, ...]


@dataclass(frozen=True)
class Ragged:
    """Ids of one sparse key for consecutive rows: row i has values[offsets[i]:offsets[i + 1]]."""

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Decoded consecutive rows: `lengths` is int32 [K, N]."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    entities: NDArray[np.int64]
    sparse: tuple[Ragged, ...]
    lengths: NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a chunk."""

    chunk: Chunk
    start: int
    stop: int


def needed_columns(contract: Contract) -> list[str]:
    """Names of the columns that training reads; times and metadata stay in the files."""
    skipped = (Role.EVENT_TIME, Role.METADATA)
    return [column.name for column in contract.columns if column.role not in skipped]


def decode(contract: Contract, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> Chunk:
    """The given rows of `batch` (positions, ascending), decoded.

    Raises:
        ReaderError: an id that its embedding table has no row for.
    """
    dense = np.empty((len(rows), len(contract.dense)), dtype=np.float32)
    for position, column in enumerate(contract.dense):
        values = _flat(batch, column)[rows]
        dense[:, position] = np.log1p(values) if column.transform is Transform.LOG1P else values
    sparse = tuple(_ragged(column, batch, rows) for column in contract.sparse)
    lengths = np.empty((len(sparse), len(rows)), dtype=np.int32)
    for position, ragged in enumerate(sparse):
        lengths[position] = np.diff(ragged.offsets)
    return Chunk(
        dense=dense,
        labels=_flat(batch, contract.label)[rows],
        entities=_flat(batch, contract.entity)[rows],
        sparse=sparse,
        lengths=lengths,
    )


def _flat(batch: pa.RecordBatch, column: Column) -> NDArray[Any]:
    return batch.column(column.name).to_numpy(zero_copy_only=False)


def _ragged(column: Column, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> Ragged:
    if column.role is Role.CATEGORICAL:
        ids = _flat(batch, column)[rows]
        offsets = np.arange(len(ids) + 1, dtype=np.int64)
    else:
        ids, offsets = _lists(batch.column(column.name), rows)
    _check_range(column, ids)
    return Ragged(table_rows(column, ids), offsets)


def _lists(array: pa.ListArray, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and offsets of some lists. Arrow's own `take` on lists takes longer than all other decoding."""
    # The offsets of a slice are not rebased, and `values` is the whole buffer behind it.
    raw = array.offsets.to_numpy().astype(np.int64)
    ids = array.values.slice(raw[0], raw[-1] - raw[0]).to_numpy(zero_copy_only=False)
    if len(rows) == len(array):
        return ids, raw - raw[0]
    lengths = np.diff(raw)
    kept = np.zeros(len(array), dtype=bool)
    kept[rows] = True
    return ids[np.repeat(kept, lengths)], np.concatenate([[0], np.cumsum(lengths[rows])])


def _check_range(column: Column, ids: NDArray[np.int64]) -> None:
    if column.hashing is not Hashing.NONE or not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= (column.num_embeddings or 0):
        raise ReaderError(
            f"column {column.name} holds ids from {low} to {high}, its table has {column.num_embeddings} rows; "
            "run the schema check on this file, or raise num_embeddings"
        )


def assemble(
    pieces: Sequence[Piece], consumed: tuple[Interval, ...], remaining: tuple[Interval, ...], *, keys: int
) -> HostBatch:
    """One batch out of pieces of chunks, copied once."""
    values = [
        piece.chunk.sparse[key].values[
            piece.chunk.sparse[key].offsets[piece.start] : piece.chunk.sparse[key].offsets[piece.stop]
        ]
        for key in range(keys)
        for piece in pieces
    ]
    lengths = np.concatenate([piece.chunk.lengths[:, piece.start : piece.stop] for piece in pieces], axis=1)
    return HostBatch(
        rows=lengths.shape[1],
        dense=np.concatenate([piece.chunk.dense[piece.start : piece.stop] for piece in pieces]),
        labels=np.concatenate([piece.chunk.labels[piece.start : piece.stop] for piece in pieces]),
        entities=np.concatenate([piece.chunk.entities[piece.start : piece.stop] for piece in pieces]),
        values=np.concatenate(values),
        lengths=lengths.reshape(-1),
        consumed=consumed,
        remaining=remaining,
    )


def empty_batch(contract: Contract, remaining: tuple[Interval, ...]) -> HostBatch:
    """A batch of no rows, for a rank that has fewer rows than steps."""
    return HostBatch(
        rows=0,
        dense=np.empty((0, len(contract.dense)), dtype=np.float32),
        labels=np.empty(0, dtype=np.float32),
        entities=np.empty(0, dtype=np.int64),
        values=np.empty(0, dtype=np.int64),
        lengths=np.empty(0, dtype=np.int32),
        consumed=(),
        remaining=remaining,
    )
