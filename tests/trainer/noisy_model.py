"""A model whose training draws random numbers on every path: dropout in the compiled tower, noise in the eager forward.

With it a resume that does not put the generators back shows in the weights.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.model.dlrm import DLRM, dlrm
from trainer.spec import RefreshSpec


class NoisyDLRM(DLRM):
    """DLRM with dropout before the interaction, and dense features scaled by what numpy and python draw."""

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        if self.training:
            dense = dense * (1 + 0.1 * np.random.random() + 0.1 * random.random())
        return super().forward(dense, sparse)


def noisy(spec: RefreshSpec, *, device: torch.device) -> nn.Module:
    """The model factory."""
    plain = dlrm(spec, device=device)
    model = NoisyDLRM(plain.sparse_arch.embedding_bag_collection, plain.tower)
    model.tower.dense_arch = nn.Sequential(model.tower.dense_arch, nn.Dropout(0.2))
    return model
