"""Hashing of ids to table rows, and of entities to the holdout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.spec import Column, Hashing

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def splitmix64(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The splitmix64 finalizer of each id: a bijection on 64 bits, the same on every platform."""
    mixed = np.asarray(ids, dtype=np.int64).view(np.uint64) + _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def table_rows(column: Column, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The embedding table row of each raw id of `column`, int64 in [0, num_embeddings) if the ids obey the contract."""
    if column.hashing is Hashing.NONE:
        return np.asarray(ids, dtype=np.int64)
    size = column.num_embeddings or 1
    mixed = splitmix64(ids)
    if size & (size - 1) == 0:
        mixed &= np.uint64(size - 1)  # the same value as the modulo, several times faster
    else:
        mixed %= np.uint64(size)
    return mixed.view(np.int64)


@dataclass(frozen=True)
class HoldoutRule:
    """Entities whose salted hash falls below `fraction` are never trained on."""

    fraction: float
    salt: int

    def held_out(self, entities: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each row's entity, whether the row belongs to the holdout."""
        salt = splitmix64(np.array([self.salt], dtype=np.int64)).view(np.int64)
        threshold = min(int(self.fraction * 2.0**64), 2**64 - 1)
        return splitmix64(np.asarray(entities, dtype=np.int64) ^ salt) < np.uint64(threshold)
