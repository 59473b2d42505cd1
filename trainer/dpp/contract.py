"""The contract as Arrow sees it: the exact schema of every file of a feature log, and the bounds of its values."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

from trainer.dpp.errors import ContractError
from trainer.spec import Column, Contract, Hashing, Role

_ARROW_TYPES: dict[str, pa.DataType] = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "date32": pa.date32(),
    "timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC"),
    "list<element: int64 not null>": pa.list_(pa.field("element", pa.int64(), nullable=False)),
}
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a column.

    Raises:
        ContractError: a type that no file of ours can hold.
    """
    try:
        return _ARROW_TYPES[column.type]
    except KeyError:
        known = ", ".join(_ARROW_TYPES)
        raise ContractError(f"column {column.name}: type {column.type!r} is not one of {known}") from None


def arrow_schema(contract: Contract) -> pa.Schema:
    """The schema that every file must equal exactly: names, order, types, and no nulls at any level."""
    return pa.schema([pa.field(column.name, arrow_type(column), nullable=False) for column in contract.columns])


def contract_hash(contract: Contract) -> str:
    """SHA-256 over what the files must hold. Table sizes are not in it: changing one leaves the files valid."""
    parts = ("name", "type", "role", "min", "max", "max_length")
    facts = [{part: column.model_dump(mode="json")[part] for part in parts} for column in contract.columns]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Bounds:
    """Inclusive bounds of a column's raw values; for lists, of their elements."""

    low: float
    high: float

    @property
    def text(self) -> str:
        low = "-inf" if self.low == -math.inf else f"{self.low:.10g}"
        high = "inf" if self.high == math.inf else f"{self.high:.10g}"
        return f"between {low} and {high}"


def bounds_of(column: Column, day: date) -> Bounds | None:
    """The bounds of a column in the partition of `day`; None where any value is right.

    Times are microseconds since the epoch. Dense values are finite even where the spec bounds them on no side, and ids
    are not negative unless the spec gives `min`.
    """
    if column.role is Role.EVENT_TIME:
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return Bounds(_microseconds(midnight), _microseconds(midnight + timedelta(days=1)) - 1)
    if column.role is Role.LABEL:
        return _declared(column, Bounds(0, 1))
    if column.role is Role.DENSE:
        return _declared(column, Bounds(-_LARGEST_FLOAT32, _LARGEST_FLOAT32))
    if column.role in (Role.CATEGORICAL, Role.JAGGED):
        high = (column.num_embeddings or 1) - 1 if column.hashing is Hashing.NONE else math.inf
        declared = _declared(column, Bounds(0, high))
        return Bounds(declared.low, min(declared.high, high))
    return None


def _declared(column: Column, default: Bounds) -> Bounds:
    low = default.low if column.min is None else column.min
    high = default.high if column.max is None else column.max
    return Bounds(low, high)


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
