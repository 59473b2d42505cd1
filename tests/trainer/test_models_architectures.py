"""The architectures: what they compute, which options they have, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import multi_head_attention_forward
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from training_job import small_spec

from trainer.dpp.batch import Batch, sparse_keys, synthetic_batch
from trainer.model import ModelFactoryError, build_model
from trainer.model.attention import SequenceColumns
from trainer.model.initialization import initialize_tables, table_configs
from trainer.spec import RefreshSpec, load_spec

PAIRWISE, CROSS, ATTENTION = (
    "trainer.model.dlrm:dlrm",
    "trainer.model.dcn_v2:dlrm_dcn_v2",
    "trainer.model.attention:dlrm_attention",
)
LIST = "list<element: int64 not null>"


def spec_of(factory: str, *, columns: list[dict[str, Any]] | None = None, **options: Any) -> RefreshSpec:
    """The small refresh with another model, and with other sparse columns if given."""
    sections: dict[str, Any] = {"model": {"factory": factory, "options": options}}
    if columns is not None:
        others = [c.model_dump(mode="json", exclude_none=True) for c in small_spec().contract.columns[:5]]
        sections["contract"] = {"columns": others + columns}
    return small_spec(**sections)


def column(name: str, role: str, **rest: Any) -> dict[str, Any]:
    kind = {"type": LIST, "max_length": 6} if role == "jagged" else {"type": "int64"}
    return {"name": name, "role": role, "num_embeddings": 50, **kind, **rest}


def built(spec: RefreshSpec) -> nn.Module:
    model = build_model(spec, device="cpu")
    initialize_tables(model.state_dict(), table_configs(model), seed=3)
    return model


def ids(spec: RefreshSpec, *rows: dict[str, list[int]]) -> KeyedJaggedTensor:
    """One row per mapping of column to ids; columns that are not named have none."""
    cells = [row.get(key, []) for key in sparse_keys(spec) for row in rows]
    return KeyedJaggedTensor.from_lengths_sync(
        keys=sparse_keys(spec),
        values=torch.tensor([value for cell in cells for value in cell], dtype=torch.int64),
        lengths=torch.tensor([len(cell) for cell in cells], dtype=torch.int32),
    )


def logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    out: torch.Tensor = model(batch.dense, batch.sparse)
    return out


@pytest.mark.parametrize("factory", [PAIRWISE, CROSS, ATTENTION])
def test_all_that_has_no_table_is_one_child_which_compiles_to_one_graph(factory: str) -> None:
    model = build_model(spec_of(factory))
    tables = (EmbeddingBagCollection, EmbeddingCollection)
    without = [
        name for name, child in model.named_children() if not any(isinstance(m, tables) for m in child.modules())
    ]
    assert without == ["tower"]
    assert {name for name, parameter in model.named_parameters() if not parameter.is_meta} == {
        f"tower.{name}" for name, _ in model.tower.named_parameters()
    }


@pytest.mark.parametrize("factory", [PAIRWISE, CROSS, ATTENTION])
def test_every_parameter_learns_and_a_seed_decides_the_first_ones(factory: str) -> None:
    spec = spec_of(factory)
    first, second = built(spec), built(spec)
    batch = synthetic_batch(spec, rows=16, seed=1)
    assert torch.equal(logits(first, batch), logits(second, batch))
    logits(first, batch).square().sum().backward()
    assert [name for name, parameter in first.named_parameters() if parameter.grad is None] == []
    still = [name for name, parameter in first.named_parameters() if not parameter.grad.any()]
    assert still == [] or set(still) == {"tower.attention.in_proj_bias"}, still


@pytest.mark.parametrize("factory", [PAIRWISE, CROSS, ATTENTION])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_rows_do_not_depend_on_each_other(factory: str, rows: int) -> None:
    spec = spec_of(factory)
    model = built(spec)
    whole = synthetic_batch(spec, rows=rows, seed=5)
    expected = logits(model, whole)
    assert expected.shape == (rows,)
    per_key = [whole.sparse[key].to_dense() for key in sparse_keys(spec)]
    for row in range(rows):
        cells = {key: per_key[place][row].tolist() for place, key in enumerate(sparse_keys(spec))}
        alone = model(whole.dense[row : row + 1], ids(spec, cells))
        torch.testing.assert_close(alone, expected[row : row + 1], rtol=0, atol=1e-5)


def test_attention_is_that_of_the_ids_that_are_there() -> None:
    """Against torch's own attention over each row's unpadded history, with the learned key for nothing before it."""
    spec = spec_of(ATTENTION, heads=4)
    model = built(spec)
    tower = model.tower
    histories = [[3, 9, 4], [], [7], [1, 1, 2, 3, 5, 8, 13, 21]]
    rows = [{"product_id": [n], "store_id": [n], "recent": history} for n, history in enumerate(histories)]
    dense = torch.rand(len(rows), 2)
    table = model.state_dict()["sequence_arch.embedding_collection.embeddings.product_id.weight"]
    bags = model.state_dict()["sparse_arch.embedding_bag_collection.embedding_bags.store_id.weight"]
    expected = []
    for place, (row, history) in enumerate(zip(rows, histories, strict=True)):
        candidate = table[row["product_id"]]
        keys = torch.cat([tower.nothing[0], table[history]])
        mha = tower.attention
        attended, _ = multi_head_attention_forward(
            candidate, keys, keys, 8, 4, mha.in_proj_weight, mha.in_proj_bias, None, None, False, 0.0,
            mha.out_proj.weight, mha.out_proj.bias,
        )  # fmt: skip
        features = torch.cat([tower.dense_arch(dense[place : place + 1]), bags[row["store_id"]], candidate, attended])
        products = (features @ features.T)[tuple(torch.triu_indices(4, 4, offset=1))]
        expected.append(tower.over_arch(torch.cat([features[0], products])[None])[0, 0])
    found = model(dense, ids(spec, *rows))
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-5)


def test_a_history_counts_in_any_order_and_a_row_without_any_id_is_finite() -> None:
    spec = spec_of(ATTENTION)
    model = built(spec)
    for name in ("sequence_arch.embedding_collection.embeddings.product_id.weight", "tower.nothing"):
        model.state_dict()[name].mul_(30).add_(0.1)  # far enough from uniform attention to tell histories apart
    base = {"product_id": [4], "store_id": [2]}
    rows = [{**base, "recent": recent} for recent in ([1, 2, 3], [3, 1, 2], [1, 2], [])]
    same, turned, shorter, empty, padding = model(torch.ones(5, 2), ids(spec, *rows, {})).tolist()
    assert same == pytest.approx(turned, abs=1e-5)
    assert len({round(value, 4) for value in (same, shorter, empty, padding)}) == 4
    assert all(abs(value) < 1e6 for value in (empty, padding))


@pytest.mark.parametrize(
    ("columns", "candidates", "histories", "bags"),
    [
        ([column("shop", "categorical"), column("seen", "jagged")], (), ("seen",), {"shop"}),
        ([column("item", "categorical"), column("seen", "jagged", table="item")], ("item",), ("seen",), set()),
        ([column("seen", "jagged")], (), ("seen",), set()),
        (
            [
                column("item", "categorical"),
                column("other", "categorical", table="item"),
                column("shop", "categorical"),
                column("seen", "jagged", table="item"),
                column("bought", "jagged", max_length=3),
            ],
            ("item", "other"),
            ("seen", "bought"),
            {"shop"},
        ),
    ],
)
def test_columns_that_share_a_table_with_a_history_are_candidates(
    columns: list[dict[str, Any]], candidates: tuple[str, ...], histories: tuple[str, ...], bags: set[str]
) -> None:
    spec = spec_of(ATTENTION, columns=columns)
    found = SequenceColumns.of(spec.contract)
    assert (found.candidates, found.histories) == (candidates, histories)
    model = built(spec)
    pooled = {name.split(".")[-2] for name in table_configs(model) if ".embedding_bags." in name}
    assert pooled == bags
    assert ("tower.query" in model.state_dict()) == (not candidates)
    out = logits(model, synthetic_batch(spec, rows=5, seed=2))
    assert out.shape == (5,) and out.isfinite().all()
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_cross_layers_are_those_of_the_paper() -> None:
    """x_{l+1} = x_0 * (U_l V_l x_l + b_l) + x_l, arXiv:2008.13535 equation 2."""
    model = built(spec_of(CROSS, cross_layers=2, cross_rank=3))
    tower = model.tower
    dense, embedded = torch.rand(4, 2), torch.rand(4, 3, 8)
    first = torch.cat([tower.dense_arch(dense), embedded.flatten(1)], dim=1)
    crossed, network = first, tower.inter_arch.crossnet
    for outer, inner, bias in zip(network.W_kernels, network.V_kernels, network.bias, strict=True):
        assert (outer.shape, inner.shape) == ((32, 3), (3, 32))
        crossed = first * (crossed @ inner.T @ outer.T + bias) + crossed
    assert len(network.bias) == 2
    torch.testing.assert_close(tower(dense, embedded), tower.over_arch(crossed)[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (PAIRWISE, {"heads": 2}, "model.options.heads is not an option of this model; it has none"),
        (CROSS, {"layers": 2}, "model.options.layers is not an option of this model; it has cross_layers, cross_rank"),
        (CROSS, {"cross_layers": 0}, "model.options.cross_layers is 0; give a whole number of at least 1"),
        (CROSS, {"cross_rank": 2.5}, "model.options.cross_rank is 2.5; give a whole number"),
        (ATTENTION, {"heads": True}, "model.options.heads is True; give a whole number"),
        (ATTENTION, {"heads": "2"}, "model.options.heads is '2'; give a whole number"),
        (ATTENTION, {"heads": 3}, "model.options.heads is 3, which does not divide embedding_dim 8"),
    ],
)
def test_options_that_a_model_does_not_have_are_told(factory: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFactoryError) as caught:
        build_model(spec_of(factory, **options))
    assert message in str(caught.value)
    assert factory in str(caught.value)


def test_without_a_history_there_is_nothing_to_attend_to() -> None:
    spec = spec_of(ATTENTION, columns=[column("item", "categorical")])
    with pytest.raises(ModelFactoryError, match=r"no jagged column to attend over; use trainer\.model\.dlrm:dlrm"):
        build_model(spec)


@pytest.mark.parametrize("refresh", ["movielens", "completejourney"])
@pytest.mark.parametrize("factory", [CROSS, ATTENTION])
def test_the_shipped_refreshes_train_with_any_of_them(refresh: str, factory: str) -> None:
    shipped = load_spec(Path(__file__).parents[2] / "dags" / "refreshes" / f"{refresh}.yaml")
    spec = shipped.model_copy(update={"model": shipped.model.model_copy(update={"factory": factory})})
    model = built(spec)
    out = logits(model, synthetic_batch(spec, rows=4, seed=1))
    assert out.shape == (4,) and out.isfinite().all()
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
