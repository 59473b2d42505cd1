"""The publish path of predictions: the one that validation checks and `publish.predict` serves."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trainer.dpp.batch import sparse_keys, to_tensors
from trainer.dpp.decode import HostBatch
from trainer.spec import RefreshSpec

BATCH_ROWS = 2048


@torch.inference_mode()
def logits_of(module: nn.Module, spec: RefreshSpec, host: HostBatch) -> NDArray[np.float32]:
    """Logits float32 [B] of a batch of B rows."""
    if host.rows == 0:
        return np.empty(0, dtype=np.float32)
    batch = to_tensors(host, sparse_keys(spec))
    logits: torch.Tensor = module(batch.dense, batch.sparse)
    return logits.float().numpy()
