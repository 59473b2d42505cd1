"""DLRM with a Deep & Cross Network v2 in place of the pairwise dot products (DLRM-DCNv2, the MLPerf ranking model).

Wang et al., DCN V2: Improved Deep & Cross Network, arXiv:2008.13535, in its low-rank form. The parts are TorchRec's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torchrec.models.dlrm import DenseArch, InteractionDCNArch, OverArch
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.model.dlrm import DLRM, embedding_tables
from trainer.model.options import options_of
from trainer.spec import RefreshSpec


@dataclass(frozen=True, kw_only=True)
class CrossOptions:
    """`model.options`: layers of the cross network, and the rank of their kernels."""

    cross_layers: int = 3
    cross_rank: int = 32


def dlrm_dcn_v2(spec: RefreshSpec, *, device: torch.device) -> DLRM:
    """The model factory; `device` is where the embedding tables are created.

    Raises:
        ValueError: an option that this model does not have.
    """
    tables = embedding_tables(spec.contract, embedding_dim=spec.model.embedding_dim)
    bags = EmbeddingBagCollection(tables=tables, device=device)
    tower = CrossTower(
        dense_features=len(spec.contract.dense),
        sparse_features=len(spec.contract.sparse),
        dense_arch=spec.model.dense_arch,
        over_arch=spec.model.over_arch,
        cross=options_of(CrossOptions, spec.model.options),
    )
    return DLRM(bags, tower)


class CrossTower(nn.Module):
    """Dense arch, cross network over all embeddings, over arch."""

    def __init__(
        self,
        *,
        dense_features: int,
        sparse_features: int,
        dense_arch: list[int],
        over_arch: list[int],
        cross: CrossOptions,
    ) -> None:
        super().__init__()
        width = (sparse_features + 1) * dense_arch[-1]
        network = LowRankCrossNet(width, num_layers=cross.cross_layers, low_rank=min(cross.cross_rank, width))
        self.dense_arch = DenseArch(dense_features, layer_sizes=dense_arch)
        self.inter_arch = InteractionDCNArch(sparse_features, network)
        self.over_arch = OverArch(width, layer_sizes=[*over_arch, 1])

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """`dense` `[B, D]`, `embedded` `[B, F, E]` -> logits `[B]`."""
        logits: torch.Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense), embedded)).squeeze(1)
        return logits
