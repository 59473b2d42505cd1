"""Whether ranks agree on the dense weights by sending them when the model is wrapped, or later, or never."""

from __future__ import annotations

from enum import StrEnum

from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.model_parallel import DistributedModelParallel, get_module


class DenseSync(StrEnum):
    """What happens to the dense weights when `DistributedDataParallel` wraps the model."""

    BROADCAST = "broadcast"  # rank 0's are sent to all, torch's default
    SKIPPED = "skipped"  # nothing: a checkpoint that every rank loads overwrites them next


def sync_dense_state(dmp: DistributedModelParallel) -> None:
    """Do by hand what `DenseSync.SKIPPED` left out, where after all nothing was loaded. Collective.

    Raises:
        RuntimeError: a parameter has another shape than on rank 0.
    """
    wrapped = get_module(dmp)
    if not isinstance(wrapped, DistributedDataParallel):  # no dense parameters
        return
    group = wrapped.process_group
    parameters, _ = wrapped._build_params_for_reducer()
    _verify_param_shape_across_processes(group, parameters)
    _sync_module_states(
        module=wrapped.module,
        process_group=group,
        broadcast_bucket_size=wrapped.broadcast_bucket_size,
        src=0,
        params_and_buffers_to_ignore=wrapped.parameters_to_ignore,
        broadcast_buffers=False,  # as TorchRec has DDP do: buffers are each rank's own
    )
