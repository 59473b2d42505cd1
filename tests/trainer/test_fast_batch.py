"""The fast batch: what is compiled from the contract alone serves real batches, beside other stages, in one graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo

from tests.small_refresh import small_spec
from trainer.compile import tower
from trainer.compile.fast_batch import compile_ahead, part_inputs, with_small_tables
from trainer.compile.tower import Choice, ShapePolicy, UntracedModuleError
from trainer.dpp.batch import synthetic_batch
from trainer.model import build_model
from trainer.spec import RefreshSpec

FACTORIES = ["trainer.model.dlrm:dlrm", "trainer.model.dcn_v2:dlrm_dcn_v2", "trainer.model.attention:dlrm_attention"]
ROWS = 32


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No graphs of another test; the eager backend, since what is asked is what Dynamo traces, and when again."""
    torch._dynamo.reset()
    original = torch.compile
    torch.compile = lambda function: original(function, backend="aot_eager")  # type: ignore[assignment]
    yield
    torch.compile = original
    torch._dynamo.reset()


def spec_of(factory: str) -> RefreshSpec:
    return small_spec(model={"factory": factory}, training={"batch_size": ROWS})


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compile_elsewhere(spec: RefreshSpec, choice: Choice) -> None:
    """As startup does: on a thread of its own."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            tower.one_graph_inside_ddp()
            compile_ahead(spec, choice, torch.device("cpu"))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(
    ("shapes", "sizes"), [(ShapePolicy.MARKED, (ROWS, 31, 7, 2, ROWS)), (ShapePolicy.OBSERVED, (ROWS, ROWS))]
)
def test_real_batches_are_served_without_compiling_again(factory: str, shapes: ShapePolicy, sizes: tuple[int, ...]):
    spec, choice = spec_of(factory), Choice(shapes=shapes)
    torch._dynamo.utils.counters.clear()
    tower.one_graph_inside_ddp()
    compile_elsewhere(spec, choice)
    assert graphs() == 1
    model = build_model(spec, device="cpu")
    (part,) = tower.install(model, choice)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, rows in enumerate(sizes):
            batch = synthetic_batch(spec, rows, seed)
            model(batch.dense, batch.sparse).sum().backward()
    assert graphs() == 1
    assert part.name == "tower"


def test_without_marks_another_size_compiles_again():
    spec, choice = spec_of(FACTORIES[0]), Choice(shapes=ShapePolicy.OBSERVED)
    tower.one_graph_inside_ddp()
    compile_elsewhere(spec, choice)
    model = build_model(spec, device="cpu")
    tower.install(model, choice)
    batch = synthetic_batch(spec, 31, 1)
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        model(batch.dense, batch.sparse)


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_twin_shows_the_parts_what_the_model_would(factory: str):
    """Shapes, types, strides and need of a gradient, whatever the size of the tables."""
    spec = spec_of(factory)
    small = with_small_tables(spec)
    assert {column.num_embeddings for column in small.contract.sparse} == {8}
    assert small.contract.columns != spec.contract.columns and len(small.contract.columns) == len(spec.contract.columns)
    shown, real = (part_inputs(build_model(of, device="cpu"), of, ROWS)["tower"] for of in (small, spec))
    assert len(shown.arguments) == len(real.arguments)
    for ours, theirs in zip(shown.arguments, real.arguments, strict=True):
        facts = [(found.shape, found.dtype, found.stride(), found.requires_grad) for found in (ours, theirs)]
        assert facts[0] == facts[1]


def test_nothing_of_the_model_is_touched_and_no_gradient_is_left():
    spec = spec_of(FACTORIES[0])
    model = build_model(spec, device="cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compile_elsewhere(spec, Choice(shapes=ShapePolicy.MARKED))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_modules_that_are_left_out_run_between_graphs_and_give_the_same():
    spec = spec_of(FACTORIES[2])
    batch = synthetic_batch(spec, ROWS, 3)
    with torch.no_grad():
        expected = build_model(spec, device="cpu")(batch.dense, batch.sparse)
    model = build_model(spec, device="cpu")
    torch._dynamo.utils.counters.clear()
    tower.install(model, Choice(shapes=ShapePolicy.OBSERVED, untraced=["tower.attention"]))
    found = model(batch.dense, batch.sparse)
    found.sum().backward()
    assert graphs() == 2  # before and after the attention
    torch.testing.assert_close(found.detach(), expected)


def test_a_part_that_is_left_out_as_a_whole_is_not_compiled():
    model = build_model(spec_of(FACTORIES[0]), device="cpu")
    assert tower.install(model, Choice(shapes=ShapePolicy.MARKED, untraced=["tower"])) == []


def test_a_module_that_the_model_does_not_have_is_named_with_those_it_has():
    model = build_model(spec_of(FACTORIES[0]), device="cpu")
    with pytest.raises(UntracedModuleError, match=r"no module 'tower.atention'; it has .*tower\.over_arch"):
        tower.install(model, Choice(shapes=ShapePolicy.MARKED, untraced=["tower.atention"]))
