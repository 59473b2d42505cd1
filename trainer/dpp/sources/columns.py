"""From what a source makes of one day to a table in the contract's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.dpp.contract import arrow_schema, arrow_type
from trainer.dpp.errors import LandingError
from trainer.spec import Column, Contract


def table_in_contract(contract: Contract, made: Mapping[str, Any], *, source: str) -> pa.Table:
    """The contract's columns out of `made`: arrays by name, or Arrow lists for jagged columns.

    Raises:
        LandingError: the contract has a column that the source does not make.
    """
    absent = [column.name for column in contract.columns if column.name not in made]
    if absent:
        raise LandingError(
            f"{source} makes no column {', '.join(absent)}; it makes {', '.join(made)}. "
            "Take it out of the contract, or name another source in data.prepare"
        )
    arrays = [_array(column, made[column.name]) for column in contract.columns]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(contract))


def _array(column: Column, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    kind = arrow_type(column)
    return pa.array(values.astype(np.float32)) if pa.types.is_floating(kind) else pa.array(values).cast(kind)


def lists(lengths: NDArray[np.int64], values: NDArray[np.int64]) -> pa.Array:
    """Non-null lists of non-null ids."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    kind = pa.list_(pa.field("element", pa.int64(), nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.asarray(values, dtype=np.int64)), type=kind)
