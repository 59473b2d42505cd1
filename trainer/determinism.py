"""`training.deterministic`: the same bits on the same host type and number of ranks, whatever kills happen.

Without it the following is so already, because it costs nothing: every rank reads its own rows in its own order, goes
on with its own random states, metrics and schedule, and restores exactly what it saved. The kernels that the shipped
model uses on CPU, fbgemm's lookups and row-wise Adagrad among them, give the same bits in every run. gloo adds up in an
order that depends on the number of ranks and on where a number lies in its buffer; of 2 ranks the sum has only one
order. The number of OpenMP threads follows from cores and ranks of the host. Compiled code is taken from the refresh's
cache, or compiled anew from the same graph for the same batch size.

What it adds:
- DDP's buffers keep their layout (`DenseBuckets.FIXED`). DDP lays them out anew after an attempt's first step, and more
  than 2 ranks are added up in another order elsewhere in a buffer;
- operations of the user's model that add up in parallel in no fixed order (index_add, scatter_add, index_put on many
  threads or on CUDA) use torch's ordered form, or raise where there is none;
- the sharding plan is kept for the refresh even where its technique is off.

Another host type, number of cores or ranks, or another release of torch gives other bits.
"""

from __future__ import annotations

import os

import torch


def use_deterministic_operations() -> None:
    """From here on this process takes torch's ordered implementations; call it before the first CUDA operation."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling unset memory finds reads of it and decides no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
