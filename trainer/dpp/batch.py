"""From a host batch to tensors on a device, and the synthetic fast-batch (paper section IV-A2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.dpp.decode import HostBatch
from trainer.spec import RefreshSpec, Role


@dataclass(frozen=True)
class Batch:
    """`dense` float32 [rows, D], `sparse` with the contract's sparse keys, `labels` float32 [rows]."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    labels: torch.Tensor
    rows: int


def sparse_keys(spec: RefreshSpec) -> list[str]:
    """The keys of every KeyedJaggedTensor of this spec, in order."""
    return [column.name for column in spec.contract.sparse]


def to_tensors(batch: HostBatch, keys: Sequence[str], device: torch.device | str = "cpu") -> Batch:
    """Copy a host batch to `device`; on the CPU the arrays are shared, not copied."""
    target = torch.device(device)
    sparse = KeyedJaggedTensor.from_lengths_sync(
        keys=list(keys), values=torch.from_numpy(batch.values), lengths=torch.from_numpy(batch.lengths)
    )
    return Batch(
        dense=torch.from_numpy(batch.dense).to(target, non_blocking=True),
        sparse=sparse.to(target, non_blocking=True),
        labels=torch.from_numpy(batch.labels).to(target, non_blocking=True),
        rows=batch.rows,
    )


def synthetic_host_batch(spec: RefreshSpec, rows: int, seed: int) -> HostBatch:
    """Random rows with the shapes, types and id ranges of real batches; the same seed gives the same rows."""
    generator = np.random.default_rng(seed)
    contract = spec.contract
    values, lengths = [], []
    for column in contract.sparse:
        longest = column.max_length if column.role is Role.JAGGED and column.max_length else 1
        shortest = 0 if column.role is Role.JAGGED else 1
        drawn = generator.integers(shortest, longest, size=rows, dtype=np.int32, endpoint=True)
        lengths.append(drawn)
        values.append(generator.integers(0, column.num_embeddings or 1, size=int(drawn.sum()), dtype=np.int64))
    return HostBatch(
        rows=rows,
        dense=generator.random((rows, len(contract.dense)), dtype=np.float32),
        labels=generator.integers(0, 2, size=rows).astype(np.float32),
        entities=np.arange(rows, dtype=np.int64),
        values=np.concatenate(values),
        lengths=np.concatenate(lengths),
        consumed=(),
        remaining=(),
    )


def synthetic_batch(spec: RefreshSpec, rows: int, seed: int, device: torch.device | str = "cpu") -> Batch:
    """The fast-batch: what compilation traces with while the data pipeline is still warming up."""
    return to_tensors(synthetic_host_batch(spec, rows, seed), sparse_keys(spec), device)
