"""DLRM whose jagged columns are sequences, not bags: the candidate attends over the user's history.

The columns of a table that has a jagged column are looked up row by row (TorchRec's `EmbeddingCollection`); multi-head
attention then weighs the history by the candidate (Vaswani et al., arXiv:1706.03762; Zhou et al., Deep Interest
Network, arXiv:1706.06978). All other columns are bags, as in DLRM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torchrec.models.dlrm import DenseArch, OverArch, SparseArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.columns import Column, Contract, Role
from trainer.kernels import PairwiseInteraction
from trainer.model.dlrm import embedding_tables
from trainer.model.options import options_of
from trainer.spec import RefreshSpec


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """`model.options`: heads of the attention; they must divide `embedding_dim`."""

    heads: int = 2


@dataclass(frozen=True, kw_only=True)
class SequenceColumns:
    """The columns that are looked up row by row: candidates have one id a row, histories at most `max_length`."""

    candidates: tuple[str, ...]
    histories: tuple[str, ...]
    max_lengths: tuple[int, ...]

    @classmethod
    def of(cls, contract: Contract) -> SequenceColumns:
        """Every jagged column, and the categorical columns that share a table with one.

        Raises:
            ValueError: there is no jagged column, so nothing to attend over.
        """
        histories = [column for column in contract.sparse if column.role is Role.JAGGED]
        if not histories:
            raise ValueError("the contract has no jagged column to attend over; use trainer.model.dlrm:dlrm")
        tables = {column.table_name for column in histories}
        shared = [column for column in contract.sparse if column.table_name in tables and column not in histories]
        return cls(
            candidates=tuple(column.name for column in shared),
            histories=tuple(column.name for column in histories),
            max_lengths=tuple(_longest(column) for column in histories),
        )


def dlrm_attention(spec: RefreshSpec, *, device: torch.device) -> DlrmAttention:
    """The model factory; `device` is where the embedding tables are created.

    Raises:
        ValueError: no jagged column, an unknown option, or heads that do not divide `embedding_dim`.
    """
    width, options = spec.model.embedding_dim, options_of(AttentionOptions, spec.model.options)
    if width % options.heads:
        raise ValueError(f"model.options.heads is {options.heads}, which does not divide embedding_dim {width}")
    columns = SequenceColumns.of(spec.contract)
    tables = embedding_tables(spec.contract, embedding_dim=width)
    in_rows = [table for table in tables if set(table.feature_names) & set(columns.histories)]
    in_bags = [table for table in tables if table not in in_rows]
    return DlrmAttention(
        EmbeddingBagCollection(tables=in_bags, device=device) if in_bags else None,
        EmbeddingCollection(tables=[_by_row(table) for table in in_rows], device=device),
        columns=columns,
        dense_features=len(spec.contract.dense),
        dense_arch=spec.model.dense_arch,
        over_arch=spec.model.over_arch,
        heads=options.heads,
    )


class DlrmAttention(nn.Module):
    """Logits of a batch. What follows the lookups is `tower`, which compiles to one graph."""

    def __init__(
        self,
        bags: EmbeddingBagCollection | None,
        sequences: EmbeddingCollection,
        *,
        columns: SequenceColumns,
        dense_features: int,
        dense_arch: list[int],
        over_arch: list[int],
        heads: int,
    ) -> None:
        super().__init__()
        self.sparse_arch = SparseArch(bags) if bags is not None else None
        self.sequence_arch = SequenceArch(sequences, columns)
        self.tower = AttentionTower(
            dense_features=dense_features,
            bags=self.sparse_arch.F if self.sparse_arch else 0,
            candidates=len(columns.candidates),
            dense_arch=dense_arch,
            over_arch=over_arch,
            heads=heads,
        )

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """`dense` float32 `[B, D]`, `sparse` with one key per sparse column -> logits float32 `[B]`."""
        candidates, history, absent = self.sequence_arch(sparse)
        bags = self.sparse_arch(sparse) if self.sparse_arch else candidates[:, :0]
        logits: torch.Tensor = self.tower(dense, bags, candidates, history, absent)
        return logits


class SequenceArch(nn.Module):
    """Row-by-row lookups, histories padded to their longest, so that shapes vary in the batch dimension only."""

    def __init__(self, sequences: EmbeddingCollection, columns: SequenceColumns) -> None:
        super().__init__()
        self.embedding_collection = sequences
        self._columns = columns
        self._width = sequences.embedding_dim()

    def forward(self, sparse: KeyedJaggedTensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Candidates `[B, Q, E]`, history `[B, T, E]`, and where the history is padding: bool `[B, T]`."""
        found: dict[str, JaggedTensor] = self.embedding_collection(sparse)
        histories = zip(self._columns.histories, self._columns.max_lengths, strict=True)
        padded = [_padded(found[name], longest) for name, longest in histories]
        history = torch.cat([rows for rows, _ in padded], dim=1)
        absent = torch.cat([missing for _, missing in padded], dim=1)
        if not self._columns.candidates:
            return history.new_zeros(len(history), 0, self._width), history, absent
        # A row that pads a batch has no ids at all: its candidate is zero.
        candidates = torch.cat([_padded(found[name], 1)[0] for name in self._columns.candidates], dim=1)
        return candidates, history, absent


class AttentionTower(nn.Module):
    """Dense arch, attention of the candidates over the history, pairwise dot products, over arch."""

    def __init__(
        self,
        *,
        dense_features: int,
        bags: int,
        candidates: int,
        dense_arch: list[int],
        over_arch: list[int],
        heads: int,
    ) -> None:
        super().__init__()
        width = dense_arch[-1]
        queries = max(candidates, 1)
        features = bags + candidates + queries
        self.dense_arch = DenseArch(dense_features, layer_sizes=dense_arch)
        # The query where no candidate shares a history's table.
        self.query = nn.Parameter(torch.empty(1, 1, width).normal_(std=width**-0.5)) if not candidates else None
        # Attending to nothing: without it a user without history has no softmax.
        self.nothing = nn.Parameter(torch.zeros(1, 1, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.inter_arch = PairwiseInteraction(features)
        self.over_arch = OverArch(width + (features + 1) * features // 2, layer_sizes=[*over_arch, 1])

    def forward(
        self,
        dense: torch.Tensor,
        bags: torch.Tensor,
        candidates: torch.Tensor,
        history: torch.Tensor,
        absent: torch.Tensor,
    ) -> torch.Tensor:
        """`dense` `[B, D]`, `bags` `[B, F, E]`, `candidates` `[B, Q, E]`, `history` `[B, T, E]`, `absent` bool `[B, T]`
        -> logits `[B]`."""
        rows = dense.shape[0]
        query = candidates if self.query is None else self.query.expand(rows, -1, -1)
        keys = torch.cat([self.nothing.expand(rows, -1, -1), history], dim=1)
        masked = torch.cat([absent.new_zeros(rows, 1), absent], dim=1)
        attended, _ = self.attention(query, keys, keys, key_padding_mask=masked, need_weights=False)
        crossed = self.inter_arch(self.dense_arch(dense), torch.cat([bags, candidates, attended], dim=1))
        logits: torch.Tensor = self.over_arch(crossed).squeeze(1)
        return logits


def _padded(sequence: JaggedTensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows `[B, longest, E]` and where they are padding, bool `[B, longest]`."""
    rows: torch.Tensor = sequence.to_padded_dense(longest)
    places = torch.arange(longest, device=rows.device)
    return rows, places >= sequence.lengths().unsqueeze(1)


def _longest(column: Column) -> int:
    if column.max_length is None:
        raise ValueError(f"column {column.name} has no max_length; the contract must have been validated")
    return column.max_length


def _by_row(table: EmbeddingBagConfig) -> EmbeddingConfig:
    return EmbeddingConfig(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=table.feature_names,
    )
