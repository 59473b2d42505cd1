"""Streams one rank's share of a read plan as batches, exactly: each row once, resumable after any batch.

Memory is bounded by a chunk, a batch and the prefetch queue, never by a file: row groups are decoded in chunks and
batches are cut from them, so that batch borders need not be row group borders.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.dpp.contract import arrow_schema, contract_hash
from trainer.dpp.cursor import Interval, count, divide, skip, steps_for
from trainer.dpp.decode import HostBatch, Piece, assemble, decode, empty_batch, needed_columns
from trainer.dpp.errors import CursorError, DppError, PlanError, ReaderError
from trainer.dpp.plan import PlannedFile, ReadPlan
from trainer.spec import Contract

CHUNK_ROWS = 8192
PREFETCHED_BATCHES = 8
_POLL_S = 0.05

__all__ = ["HostBatch", "PartitionReader", "RowSet", "read_holdout"]


class RowSet(Enum):
    """Which rows of a row group the ordinals of an interval count."""

    TRAINING = "training"
    HOLDOUT = "holdout"


class PartitionReader:
    """Iterates exactly `steps` batches of the rows of `intervals`, prefetched by a thread.

    Step i takes min(batch_size, rows left - (steps left - 1)) rows, so every step has a row unless the rank has fewer
    rows than steps. Errors in the thread are raised by the iteration and name the file. Use as a context manager, or
    call `close`, which joins the thread.

    Raises:
        PlanError: the contract is not the one the plan was checked against; in iteration, a file changed.
        CursorError: an interval lies outside the plan, or the rows do not fit into the steps.
        ReaderError: in iteration, a file cannot be read or decoded.
    """

    def __init__(
        self,
        plan: ReadPlan,
        contract: Contract,
        intervals: Sequence[Interval],
        *,
        batch_size: int,
        steps: int,
        row_set: RowSet = RowSet.TRAINING,
        prefetch: int = PREFETCHED_BATCHES,
    ) -> None:
        _check_request(plan, contract, intervals, row_set, capacity=batch_size * steps)
        self._plan, self._contract, self._row_set = plan, contract, row_set
        self._intervals = tuple(intervals)
        self._batch_size, self._steps = batch_size, steps
        self._given = 0
        self._stopping = threading.Event()
        self._ready: queue.Queue[HostBatch | BaseException] = queue.Queue(maxsize=max(1, prefetch))
        self._thread = threading.Thread(target=self._prefetch, name="dpp-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        if self._given == self._steps:
            self.close()
            raise StopIteration
        if self._stopping.is_set():
            raise ReaderError("the reader is closed; make a new one from the remaining intervals")
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._given += 1
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the prefetch thread and wait for it; calling again does nothing."""
        self._stopping.set()
        self._thread.join()

    def _prefetch(self) -> None:
        try:
            for batch in self._batches():
                if not self._hand_over(batch):
                    return
        except BaseException as error:  # whatever it was, the consumer must hear of it instead of waiting for ever
            self._hand_over(error)

    def _hand_over(self, item: HostBatch | BaseException) -> bool:
        while not self._stopping.is_set():
            try:
                self._ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def _batches(self) -> Iterator[HostBatch]:
        left, rest = count(self._intervals), self._intervals
        pieces = _Pieces(self._chunks())
        keys = len(self._contract.sparse)
        for steps_left in range(self._steps, 0, -1):
            rows = max(0, min(self._batch_size, left - (steps_left - 1)))
            if not rows:
                yield empty_batch(self._contract, rest)
                continue
            after = skip(rest, rows)
            yield assemble(pieces.take(rows), _taken(rest, rows), after, keys=keys)
            left, rest = left - rows, after

    def _chunks(self) -> Iterator[Piece]:
        with ExitStack() as opened:
            source: _Source | None = None
            for interval in self._intervals:
                planned = self._plan.files[interval.file]
                try:
                    if source is None or source.planned is not planned:
                        opened.close()
                        source = self._open(planned, opened)
                    yield from self._read(source, interval)
                except (DppError, OSError, pa.ArrowException, ValueError) as error:
                    if isinstance(error, PlanError):
                        raise
                    if source is not None:  # what cannot be decoded may be what another process has just written
                        source.check_unchanged()
                    raise ReaderError(f"{planned.path}: row group {interval.row_group}: {error}") from error

    def _open(self, planned: PlannedFile, opened: ExitStack) -> _Source:
        handle = opened.enter_context(planned.open())
        parquet = pq.ParquetFile(handle, page_checksum_verification=True, pre_buffer=False)
        if not parquet.schema_arrow.equals(arrow_schema(self._contract), check_metadata=False):
            raise ReaderError("its schema is not the contract's; run the schema check")
        return _Source(planned, handle, parquet)

    def _read(self, source: _Source, interval: Interval) -> Iterator[Piece]:
        """The interval's rows as pieces of decoded chunks; rows of the other row set are dropped before they count."""
        columns = needed_columns(self._contract)
        groups = source.parquet.iter_batches(
            batch_size=CHUNK_ROWS, row_groups=[interval.row_group], columns=columns, use_threads=False
        )
        ordinal = 0
        for batch in groups:
            kept = self._kept(batch)
            start, stop = max(interval.start - ordinal, 0), min(interval.stop - ordinal, len(kept))
            ordinal += len(kept)
            if start < stop:
                chunk = decode(self._contract, batch, kept[start:stop])
                source.check_unchanged()
                yield Piece(chunk, 0, chunk.rows)
            if ordinal >= interval.stop:
                return
        raise ReaderError(f"has {ordinal} {self._row_set.value} rows, the plan counts on {interval.stop}")

    def _kept(self, batch: pa.RecordBatch) -> np.ndarray:
        entities = batch.column(self._contract.entity.name).to_numpy(zero_copy_only=False)
        held_out = self._plan.holdout.held_out(entities)
        return np.flatnonzero(held_out if self._row_set is RowSet.HOLDOUT else ~held_out)


@dataclass(frozen=True)
class _Source:
    """A planned file that is open."""

    planned: PlannedFile
    handle: BinaryIO
    parquet: pq.ParquetFile

    def check_unchanged(self) -> None:
        """Raises PlanError."""
        if not self.handle.closed:
            self.planned.check_unchanged(self.handle)


class _Pieces:
    """Pulls pieces and cuts them to the rows asked for."""

    def __init__(self, source: Iterator[Piece]) -> None:
        self._source = source
        self._open: Piece | None = None

    def take(self, rows: int) -> list[Piece]:
        taken = []
        while rows:
            piece = self._open or next(self._source)
            stop = min(piece.stop, piece.start + rows)
            taken.append(Piece(piece.chunk, piece.start, stop))
            rows -= stop - piece.start
            self._open = Piece(piece.chunk, stop, piece.stop) if stop < piece.stop else None
        return taken


def _taken(intervals: tuple[Interval, ...], rows: int) -> tuple[Interval, ...]:
    taken = []
    for interval in intervals:
        if not rows:
            break
        part = Interval(interval.file, interval.row_group, interval.start, interval.start + min(rows, interval.rows))
        taken.append(part)
        rows -= part.rows
    return tuple(taken)


def _check_request(
    plan: ReadPlan, contract: Contract, intervals: Sequence[Interval], row_set: RowSet, *, capacity: int
) -> None:
    if contract_hash(contract) != plan.contract:
        raise PlanError("the plan was checked against another contract; run the schema check again")
    rows = count(intervals)
    if rows > capacity:
        raise CursorError(f"{rows} rows do not fit into {capacity} (batch size times steps); see steps_for")
    for interval in intervals:
        groups = plan.files[interval.file].row_groups if interval.file < len(plan.files) else ()
        if interval.row_group >= len(groups):
            raise CursorError(f"{interval} is not in the plan; was it saved by a run over another window?")
        group = groups[interval.row_group]
        available = group.train_rows if row_set is RowSet.TRAINING else group.holdout_rows
        if interval.stop > available:
            raise CursorError(f"{interval} goes past the {available} {row_set.value} rows of its row group")


def read_holdout(plan: ReadPlan, contract: Contract, *, rank: int, world_size: int, batch_size: int) -> PartitionReader:
    """This rank's share of the holdout, in the same order each time; every rank gets the same number of batches.

    `consumed` and `remaining` of these batches count ordinals among holdout rows.
    """
    shares = divide(plan.holdout_intervals(), world_size)
    steps = steps_for([count(share) for share in shares], batch_size)
    return PartitionReader(plan, contract, shares[rank], batch_size=batch_size, steps=steps, row_set=RowSet.HOLDOUT)
