"""DLRM over a contract's columns: dense arch, embedding bags, pairwise interaction, over arch.

Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, arXiv:1906.00091. The
parts are TorchRec's; on a GPU the pairwise products are a kernel of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torchrec.models.dlrm import DenseArch, OverArch, SparseArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.columns import Contract
from trainer.kernels import PairwiseInteraction
from trainer.model.options import options_of
from trainer.spec import RefreshSpec


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """`model.options` of an architecture that has none."""


def dlrm(spec: RefreshSpec, *, device: torch.device) -> DLRM:
    """The model factory of the shipped specs; `device` is where the embedding tables are created.

    Raises:
        ValueError: `model.options`, of which this model has none.
    """
    options_of(NoOptions, spec.model.options)
    tables = embedding_tables(spec.contract, embedding_dim=spec.model.embedding_dim)
    bags = EmbeddingBagCollection(tables=tables, device=device)
    tower = DenseTower(
        dense_features=len(spec.contract.dense),
        sparse_features=len(spec.contract.sparse),
        dense_arch=spec.model.dense_arch,
        over_arch=spec.model.over_arch,
    )
    return DLRM(bags, tower)


def embedding_tables(contract: Contract, *, embedding_dim: int) -> list[EmbeddingBagConfig]:
    """One table per table name, shared by the columns that name it; features of a table follow `contract.sparse`."""
    features: dict[str, list[str]] = {}
    rows: dict[str, int] = {}
    for column in contract.sparse:
        if column.num_embeddings is None:
            raise ValueError(f"column {column.name} has no num_embeddings; the contract must have been validated")
        features.setdefault(column.table_name, []).append(column.name)
        rows[column.table_name] = column.num_embeddings
    return [
        EmbeddingBagConfig(
            name=table, num_embeddings=rows[table], embedding_dim=embedding_dim, feature_names=features[table]
        )
        for table in features
    ]


class DLRM(nn.Module):
    """Logits of a batch. `tower` is all that has no ids or tables, in one module, so that it compiles to one graph."""

    def __init__(self, tables: EmbeddingBagCollection, tower: nn.Module) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(tables)
        self.tower = tower

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """`dense` float32 `[B, D]`, `sparse` with one key per sparse column -> logits float32 `[B]`."""
        logits: torch.Tensor = self.tower(dense, self.sparse_arch(sparse))
        return logits


class DenseTower(nn.Module):
    """Dense arch, pairwise dot products, over arch."""

    def __init__(
        self, *, dense_features: int, sparse_features: int, dense_arch: list[int], over_arch: list[int]
    ) -> None:
        super().__init__()
        pairs = (sparse_features + 1) * sparse_features // 2
        self.dense_arch = DenseArch(dense_features, layer_sizes=dense_arch)
        self.inter_arch = PairwiseInteraction(sparse_features)
        self.over_arch = OverArch(dense_arch[-1] + pairs, layer_sizes=[*over_arch, 1])

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """`dense` `[B, D]`, `embedded` `[B, F, E]` -> logits `[B]`."""
        crossed = self.inter_arch(self.dense_arch(dense), embedded)
        logits: torch.Tensor = self.over_arch(crossed).squeeze(1)
        return logits
