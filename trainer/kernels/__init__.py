"""GPU kernels of the trainer's own, their references, and which configurations they are launched with.

Nothing here imports Triton until a kernel is built on a GPU: on CPU this package costs no import and runs plain torch.
"""

from trainer.kernels.configs import ConfigSource, use_configs
from trainer.kernels.pairwise import PairwiseInteraction, Precision

__all__ = ["ConfigSource", "PairwiseInteraction", "Precision", "use_configs"]
