"""The model: what a factory may do wrong, shared tables, and first weights that no sharding changes."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch
from training_job import small_spec

from trainer.dpp.batch import synthetic_batch
from trainer.model import ModelFactoryError, build_model
from trainer.model.dlrm import embedding_tables
from trainer.model.initialization import _draw, initialize_tables, table_configs


def test_columns_share_the_table_that_they_name():
    tables = embedding_tables(small_spec().contract, embedding_dim=8)
    assert {table.name: table.feature_names for table in tables} == {
        "product_id": ["product_id", "recent"],
        "store_id": ["store_id"],
    }


def test_built_model_predicts_a_logit_a_row_and_the_same_for_a_seed():
    spec = small_spec()
    models = [build_model(spec, device="cpu") for _ in range(2)]
    batch = synthetic_batch(spec, rows=5, seed=1)
    for model in models:
        initialize_tables(model.state_dict(), table_configs(model), seed=spec.training.seed)
    first, second = (model(batch.dense, batch.sparse) for model in models)
    assert first.shape == (5,)
    assert torch.equal(first, second)


def test_tables_stay_on_the_meta_device_and_the_rest_does_not():
    state = build_model(small_spec()).state_dict()
    on_meta = {name for name, tensor in state.items() if tensor.is_meta}
    assert on_meta == {name for name in state if "embedding_bags" in name}


def test_rows_are_the_same_however_a_table_is_cut():
    model = build_model(small_spec(), device="cpu")
    (name, config), *_ = table_configs(model).items()
    config.num_embeddings = 20_000
    whole = torch.empty(20_000, config.embedding_dim)
    initialize_tables({name: whole}, {name: config}, seed=3)
    for row, column, rows, columns in [(0, 0, 7, 8), (8190, 2, 5, 4), (9000, 4, 11_000, 4)]:
        part = torch.empty(rows, columns)
        _draw(part, row=row, column=column, config=config, seed=3)
        assert torch.equal(part, whole[row : row + rows, column : column + columns])
    assert whole.abs().max() <= config.get_weight_init_max()
    assert whole.std() > config.get_weight_init_max() / 2
    other = torch.empty_like(whole)
    initialize_tables({name: other}, {name: config}, seed=4)
    assert not torch.equal(whole, other)


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("their_models")
    monkeypatch.setitem(sys.modules, "their_models", module)
    return module


def test_models_built_at_once_have_the_weights_of_their_seed(factories: ModuleType):
    """Startup builds the model and a twin to compile with in two threads; both draw from one generator."""
    inside = threading.Semaphore(0)

    def build(spec: object, *, device: torch.device) -> torch.nn.Module:
        inside.release()
        if inside.acquire(timeout=0.3):  # its own; then the other's, which must not come
            inside.acquire(timeout=0.3)
        return torch.nn.Linear(4, 4)

    factories.build = build  # type: ignore[attr-defined]
    spec = small_spec(model={"factory": "their_models:build"})
    alone = build_model(spec).state_dict()
    with ThreadPoolExecutor(2) as pool:
        together = [model.state_dict() for model in pool.map(lambda _: build_model(spec), range(2))]
    for state in together:
        assert all(torch.equal(state[name], alone[name]) for name in alone)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_package.models:build", "no module named 'no_such_package'; install it"),
        ("their_models:absent", "their_models has no 'absent'"),
        ("their_models:number", "number is a int, not a function"),
        ("their_models:fails", "it raised KeyError: 'width'"),
        ("their_models:wrong", "it returned a dict; return a torch.nn.Module"),
    ],
)
def test_a_factory_that_cannot_be_used_is_named_with_the_reason(factories: ModuleType, factory: str, message: str):
    def fails(spec: object, *, device: torch.device) -> None:
        raise KeyError("width")

    factories.number, factories.fails = 3, fails  # type: ignore[attr-defined]
    factories.wrong = lambda spec, device: {}  # type: ignore[attr-defined]
    with pytest.raises(ModelFactoryError) as caught:
        build_model(small_spec(model={"factory": factory}))
    assert factory in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.factory == factory


def test_a_users_own_factory_is_used(factories: ModuleType):
    made = torch.nn.Linear(2, 1)
    factories.build = lambda spec, device: made  # type: ignore[attr-defined]
    assert build_model(small_spec(model={"factory": "their_models:build"})) is made
