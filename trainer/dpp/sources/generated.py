"""Seeded rows for any contract at any scale, with a signal to learn: for tests and benchmarks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.dpp.contract import arrow_schema, arrow_type
from trainer.dpp.hashing import splitmix64
from trainer.dpp.partitions import LandingMarker, land, landing_lock
from trainer.spec import Column, Contract, Hashing, Role, Transform

_SKEW = 2.0  # ids are drawn as floor(n * u**skew): few are frequent, most are rare
_UNBOUNDED_IDS = 2**40
_DENSE_SPAN = 10.0
_SIGNAL = 1.6  # standard deviation of the log-odds that the features explain


@dataclass(frozen=True)
class Generator:
    """Writes days of a contract; the same seed and day give the same rows, whichever other days are written."""

    contract: Contract
    rows_per_day: int
    seed: int = 0
    entities: int = 5_000
    base_rate: float = 0.25

    def table(self, day: date) -> pa.Table:
        """The rows of `day`, in the contract's schema."""
        random = np.random.default_rng([self.seed, day.toordinal()])
        arrays: dict[str, pa.Array] = {}
        score = np.zeros(self.rows_per_day)
        for column in self.contract.columns:
            if column.role is not Role.LABEL:
                arrays[column.name], part = self._column(column, day, random)
                score += part
        arrays[self.contract.label.name] = self._labels(score, random)
        schema = arrow_schema(self.contract)
        return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def land(self, root: Path, newest: date, days: int) -> list[LandingMarker]:
        """Land `days` days that end with `newest`, oldest first."""
        source = {"module": __name__, "seed": self.seed, "rows_per_day": self.rows_per_day}
        with landing_lock(root):
            return [
                land(root, day, self.table(day), self.contract, source=source)
                for day in (newest - timedelta(days=back) for back in range(days - 1, -1, -1))
            ]

    def _labels(self, score: NDArray[np.float64], random: np.random.Generator) -> pa.Array:
        spread = score.std() or 1.0
        centred = (score - score.mean()) / spread * _SIGNAL
        offset = np.log(self.base_rate / (1 - self.base_rate)) * np.sqrt(1 + _SIGNAL**2 / 3)
        chance = 1 / (1 + np.exp(-(centred + offset)))
        return pa.array((random.random(len(score)) < chance).astype(np.float32))

    def _column(
        self, column: Column, day: date, random: np.random.Generator
    ) -> tuple[pa.Array, NDArray[np.float64] | float]:
        """A column's values and what they add to the log-odds of a positive label."""
        rows = self.rows_per_day
        if column.role is Role.DENSE:
            return self._dense(column, random)
        if column.role is Role.ENTITY:
            entities = random.integers(1, self.entities, size=rows, endpoint=True)
            return pa.array(entities), 0.3 * _effect(column, entities)
        if column.role is Role.CATEGORICAL:
            ids = self._ids(column, random, rows)
            return pa.array(ids), _effect(column, ids)
        if column.role is Role.JAGGED:
            return self._lists(column, random)
        if column.role is Role.EVENT_TIME:
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            start = int(midnight.timestamp()) * 1_000_000
            times = start + np.sort(random.integers(0, 86_400_000_000, size=rows))
            return pa.array(times).cast(arrow_type(column)), 0.0
        return _metadata(column, day, rows), 0.0

    def _dense(self, column: Column, random: np.random.Generator) -> tuple[pa.Array, NDArray[np.float64]]:
        low = 0.0 if column.min is None else column.min
        high = low + _DENSE_SPAN if column.max is None else column.max
        share = random.random(self.rows_per_day)
        values = low + (high - low) * (share**3 if column.transform is Transform.LOG1P else share)
        clipped = np.clip(values.astype(np.float32), np.float32(low), np.float32(high))
        return pa.array(clipped), _weight(column.name) * (share - 0.5)

    def _ids(self, column: Column, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        low = int(column.min or 0)
        size = (column.num_embeddings or 1) if column.hashing is Hashing.NONE else 2 * (column.num_embeddings or 1)
        high = min(size, int(column.max) + 1 if column.max is not None else _UNBOUNDED_IDS)
        return low + ((high - low) * random.random(count) ** _SKEW).astype(np.int64)

    def _lists(self, column: Column, random: np.random.Generator) -> tuple[pa.Array, NDArray[np.float64]]:
        lengths = random.integers(0, column.max_length or 1, size=self.rows_per_day, endpoint=True)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ids = self._ids(column, random, int(offsets[-1]))
        sums = np.concatenate([[0.0], np.cumsum(_effect(column, ids))])
        mean = (sums[offsets[1:]] - sums[offsets[:-1]]) / np.maximum(lengths, 1)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids), type=arrow_type(column)), mean


def _weight(name: str) -> float:
    """A column's weight in the signal: fixed by its name, so that every day and seed shares one truth to learn."""
    return zlib.crc32(name.encode()) / 2**31 - 1


def _effect(column: Column, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each id's own effect, in [-0.5, 0.5): fixed by the table's name and the id."""
    salt = np.int64(zlib.crc32(column.table_name.encode()))
    return splitmix64(ids + salt * np.int64(1_000_003)).astype(np.float64) / 2.0**64 - 0.5


def _metadata(column: Column, day: date, rows: int) -> pa.Array:
    kind = arrow_type(column)
    if pa.types.is_date(kind):
        return pa.array([day], type=kind).take(pa.array(np.zeros(rows, dtype=np.int64)))
    if pa.types.is_timestamp(kind):
        return pa.array(np.full(rows, day.toordinal()), type=pa.int64()).cast(kind)
    if pa.types.is_string(kind):
        return pa.array(["generated"] * rows, type=kind)
    return pa.array(np.arange(rows)).cast(kind)
