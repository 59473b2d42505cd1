"""Every shipped tower traces to one graph, forward and backward, that serves batches of every size from 2 rows on."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from training_job import small_spec

from trainer.dpp.batch import synthetic_batch
from trainer.model import build_model
from trainer.model.initialization import initialize_tables, table_configs


@pytest.mark.parametrize(
    "factory",
    ["trainer.model.dlrm:dlrm", "trainer.model.dcn_v2:dlrm_dcn_v2", "trainer.model.attention:dlrm_attention"],
)
def test_a_tower_is_one_graph_for_every_batch_size(factory: str) -> None:
    spec = small_spec(model={"factory": factory})
    model = build_model(spec, device="cpu")
    initialize_tables(model.state_dict(), table_configs(model), seed=3)
    batches = [synthetic_batch(spec, rows=rows, seed=rows) for rows in (32, 5, 17, 2)]
    expected = [_with_gradients(model, batch) for batch in batches]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")  # Dynamo and autograd as ever; only code is not generated
    tower: nn.Module = model.tower
    traced = torch.compile(tower.forward, backend=counter, fullgraph=True)

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, 0)
        out: torch.Tensor = traced(*inputs)
        return out

    tower.forward = forward  # type: ignore[method-assign]
    for batch, (logits, gradients) in zip(batches, expected, strict=True):
        found, theirs = _with_gradients(model, batch)
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(theirs[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert counter.frame_count == 1


def _with_gradients(model: nn.Module, batch: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits = model(batch.dense, batch.sparse)  # type: ignore[attr-defined]
    logits.square().sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return logits.detach(), gradients
