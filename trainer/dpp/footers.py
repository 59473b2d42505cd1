"""What a Parquet file says about itself: schema and statistics, read from the footer alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.dpp.plan import FileIdentity


@dataclass(frozen=True)
class ColumnFacts:
    """A top-level column as the footer has it. `low` and `high` are NaN where there are no statistics.

    `nulls` is None for nested columns: their null count includes empty lists.
    """

    position: int
    name: str
    type: str
    nullable: bool
    low: float
    high: float
    nulls: int | None


@dataclass(frozen=True)
class FileFacts:
    """A file's footer. `problem` says why it could not be read; everything else is then empty."""

    path: str
    day: date
    rows: int = 0
    row_groups: tuple[int, ...] = ()
    columns: tuple[ColumnFacts, ...] = ()
    size: int = 0
    identity: FileIdentity | None = None
    schema: pa.Schema | None = None
    problem: str | None = None


def read_facts(path: Path, day: date) -> FileFacts:
    """The facts of one file; a file that cannot be read is a fact, not an exception."""
    try:
        with path.open("rb") as handle:
            identity = FileIdentity.of(handle)
            parquet = pq.ParquetFile(handle)
            metadata, schema = parquet.metadata, parquet.schema_arrow
            groups = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
            columns = _columns(metadata, schema)
    except PermissionError as error:
        return FileFacts(str(path), day, problem=f"no permission ({error.strerror})")
    except (OSError, ValueError, pa.ArrowException) as error:
        return FileFacts(str(path), day, problem=" ".join(str(error).split()) or type(error).__name__)
    return FileFacts(
        path=str(path),
        day=day,
        rows=sum(groups),
        row_groups=groups,
        columns=columns,
        size=identity.size,
        identity=identity,
        schema=schema,
    )


def _columns(metadata: pq.FileMetaData, schema: pa.Schema) -> tuple[ColumnFacts, ...]:
    facts, leaf = [], 0
    for position, column in enumerate(schema):
        leaves = _leaves(column.type)
        low, high, nulls = _statistics(metadata, leaf) if leaves == 1 else (math.nan, math.nan, None)
        nested = pa.types.is_nested(column.type)
        facts.append(
            ColumnFacts(
                position=position,
                name=column.name,
                type=str(column.type),
                nullable=column.nullable,
                low=low,
                high=high,
                nulls=None if nested else nulls,
            )
        )
        leaf += leaves
    return tuple(facts)


def _leaves(kind: pa.DataType) -> int:
    """Parquet columns behind an Arrow type."""
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaves(kind.value_type)
    return 1


def _statistics(metadata: pq.FileMetaData, leaf: int) -> tuple[float, float, int | None]:
    lows, highs, nulls = [], [], 0
    for index in range(metadata.num_row_groups):
        statistics = metadata.row_group(index).column(leaf).statistics
        if statistics is None or not statistics.has_null_count:
            return math.nan, math.nan, None
        nulls += statistics.null_count
        if statistics.has_min_max:
            lows.append(as_number(statistics.min))
            highs.append(as_number(statistics.max))
    return min(lows, default=math.nan), max(highs, default=math.nan), nulls


def as_number(value: Any) -> float:
    """A statistic as a number: times in microseconds since the epoch; NaN for what has no order that we check."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return float((aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)
