"""DLRM's pairwise dot products as a module: a fused Triton kernel on CUDA, plain torch elsewhere."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from enum import StrEnum

import torch
from torch import nn

log = logging.getLogger(__name__)

MAX_SPARSE_FEATURES = 127
"""With the dense row, 128 rows of a batch row's square of products: what one program holds in registers."""

MAX_WIDTH = 1024


class Precision(StrEnum):
    """How the kernel multiplies float32; other dtypes are multiplied as they are and summed in float32."""

    IEEE = "ieee"  # as torch's default
    TF32 = "tf32"  # as `torch.backends.cuda.matmul.allow_tf32 = True`


Fused = Callable[[torch.Tensor, torch.Tensor, Precision], torch.Tensor]


class PairwiseInteraction(nn.Module):
    """Drop-in for TorchRec's `InteractionArch`: the same output, no parameters, nothing in the state dict.

    Naumov et al., Deep Learning Recommendation Model, arXiv:1906.00091, section 2.1. On a GPU the products, their upper
    triangle and the concatenation are one kernel, which never writes the square of products. Not yet run on a GPU.
    """

    def __init__(self, num_sparse_features: int, *, precision: Precision = Precision.IEEE) -> None:
        super().__init__()
        self.F = num_sparse_features
        self._precision = precision
        self._fused = _fused_kernel(num_sparse_features)
        nodes = num_sparse_features + 1
        self.register_buffer("triu_indices", torch.triu_indices(nodes, nodes, offset=1), persistent=False)

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """`dense` `[B, E]`, `embedded` `[B, F, E]` -> `[B, E + F * (F + 1) / 2]`: dense, then each pair's product.

        Raises:
            InteractionShapeError: on CUDA, shapes, dtypes or devices that do not go together.
        """
        if self.F <= 0:
            return dense
        if dense.is_cuda and self._fused is not None and dense.shape[1] <= MAX_WIDTH:
            return self._fused(dense, embedded, self._precision)
        return reference_interaction(dense, embedded, self.get_buffer("triu_indices"))


def reference_interaction(dense: torch.Tensor, embedded: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """What TorchRec's `InteractionArch` computes, by the same operations, where TorchRec cannot be imported.

    `dense` `[B, E]`, `embedded` `[B, F, E]`, `pairs` int64 `[2, F * (F + 1) / 2]`: the upper triangle's indices.
    """
    stacked = torch.cat((dense.unsqueeze(1), embedded), dim=1)
    products = torch.bmm(stacked, torch.transpose(stacked, 1, 2))
    return torch.cat((dense, products[:, pairs[0], pairs[1]]), dim=1)


def _fused_kernel(sparse_features: int) -> Fused | None:
    """The Triton kernel where it can run. Imported when the module is made, so that no tracing meets the import."""
    if not 0 < sparse_features <= MAX_SPARSE_FEATURES or not torch.cuda.is_available():
        return None
    if importlib.util.find_spec("triton") is None:
        log.warning("Triton is not installed: pairwise interaction runs as separate torch operations on this GPU")
        return None
    from trainer.kernels.interaction import fused_interaction

    return fused_interaction
