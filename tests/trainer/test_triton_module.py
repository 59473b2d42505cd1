"""On CPU the interaction is TorchRec's to the bit, and costs no import of Triton."""

from __future__ import annotations

import copy
import importlib.util
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from torchrec.models.dlrm import InteractionArch

from trainer.kernels import PairwiseInteraction
from trainer.kernels import pairwise as module_file


@pytest.mark.parametrize("features", [0, 1, 26])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_output_and_gradients_are_torchrecs_bits(features: int, batch: int) -> None:
    torch.manual_seed(3)
    grad = torch.randn(batch, 16 + features * (features + 1) // 2)
    found = []
    for interact in (PairwiseInteraction(features), InteractionArch(features)):
        generator = torch.Generator().manual_seed(1)
        dense = torch.randn(batch, 16, generator=generator, requires_grad=True)
        embedded = torch.randn(batch, features, 16, generator=generator, requires_grad=True)
        output = interact(dense, embedded)
        (output * grad).sum().backward()
        found.append((output, dense.grad, embedded.grad))
    for mine, torchrecs in zip(*found, strict=True):
        assert (mine is None) == (torchrecs is None)
        assert mine is None or torch.equal(mine, torchrecs)


def test_it_adds_nothing_to_a_state_dict_and_can_be_copied() -> None:
    interact = PairwiseInteraction(4)
    assert interact.state_dict() == {} and list(interact.parameters()) == []
    dense, embedded = torch.randn(3, 8), torch.randn(3, 4, 8)
    for other in (copy.deepcopy(interact), pickle.loads(pickle.dumps(interact))):
        assert torch.equal(other(dense, embedded), interact(dense, embedded))


def test_one_graph_serves_every_batch() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    interact = PairwiseInteraction(4)
    compiled = torch.compile(interact, backend=count, fullgraph=True)
    for batch in (5, 9, 2):
        dense, embedded = torch.randn(batch, 8), torch.randn(batch, 4, 8)
        for tensor in (dense, embedded):
            torch._dynamo.mark_dynamic(tensor, 0)
        assert torch.equal(compiled(dense, embedded), interact(dense, embedded))
    assert len(graphs) == 1


def test_importing_the_package_imports_neither_triton_nor_torchrec() -> None:
    code = (
        "import sys, trainer.kernels; trainer.kernels.PairwiseInteraction(3);"
        "sys.exit(' '.join({'triton', 'torchrec', 'fbgemm_gpu', 'pydantic'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_gpu_without_triton_gets_plain_torch_and_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find_spec(name))
    with caplog.at_level(logging.WARNING, logger=module_file.__name__):
        interact = PairwiseInteraction(3)
    assert "Triton is not installed" in caplog.text
    assert interact(torch.randn(2, 8), torch.randn(2, 3, 8)).shape == (2, 8 + 6)
