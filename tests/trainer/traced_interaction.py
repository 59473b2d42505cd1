"""Traces the interaction through AOTAutograd with a batch of varying size, for a GPU that is not there.

Prints what the graph that caches are keyed by says of the launch, and for forward and backward which kernels there are,
what they are known to write, and the size of the batch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from triton.backends.compiler import GPUTarget

from trainer.kernels import ConfigSource, interaction, use_configs


class AbsentGpu:
    """All that tracing asks of a driver."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def main() -> None:
    triton.runtime.driver.set_active(AbsentGpu())
    interaction.INTERPRETED = True  # lets CPU tensors through: nothing is launched here
    use_configs(ConfigSource(sys.argv[1]))
    graphs: list[dict[str, Any]] = []

    def capture(module: torch.fx.GraphModule, _: Any) -> Any:
        kernels = [node for node in module.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
        graphs.append(
            {
                "written": [node.kwargs["tensors_to_clone"] for node in kernels],
                "batch": sorted({str(node.kwargs["kwargs"]["batch"].meta["val"]) for node in kernels}),
                "grid": [str(node.kwargs["grid"][0][0]) for node in kernels],
            }
        )
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        return make_boxed_func(lambda *_: [empty(node) for node in output.args[0]])

    dense, embedded = torch.randn(8, 64, requires_grad=True), torch.randn(8, 26, 64, requires_grad=True)
    for tensor in (dense, embedded):
        torch._dynamo.mark_dynamic(tensor, 0)
    lower = aot_autograd(fw_compiler=capture, bw_compiler=capture)
    plans: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        plans.extend(node.args[3] for node in module.graph.nodes if "pairwise_interaction" in str(node.target))
        return lower(module, inputs)

    compiled = torch.compile(lambda a, b: interaction.fused_interaction(a, b).sum(), backend=backend, fullgraph=True)
    compiled(dense, embedded).backward()
    json.dump({"plans": plans, "graphs": graphs}, sys.stdout)


def empty(node: Any) -> Any:
    """What stands for the value of `node`, of the size that was traced with."""
    if node is None:
        return None
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return torch.empty([hint(size) for size in value.shape], dtype=value.dtype)
    return hint(value)


def hint(size: Any) -> int:
    return size.node.hint if isinstance(size, torch.SymInt) else size


if __name__ == "__main__":
    main()
