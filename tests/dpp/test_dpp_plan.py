"""Plan, hashing and contract: what is written is what is read, and versions are told apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trainer.dpp.contract import contract_hash
from trainer.dpp.errors import PlanError
from trainer.dpp.hashing import HoldoutRule, splitmix64, table_rows
from trainer.dpp.plan import ReadPlan
from trainer.dpp.scan import unchecked_plan
from trainer.spec import Contract, RefreshSpec, Window


def test_a_plan_survives_its_file(spec: RefreshSpec, root: Path, window: Window, tmp_path: Path) -> None:
    plan = unchecked_plan(spec, root, window)
    plan.dump(tmp_path / "plan.json")
    assert ReadPlan.load(tmp_path / "plan.json") == plan
    assert plan.train_rows + plan.holdout_rows == 2 * 400
    assert plan.train_rows == sum(interval.rows for interval in plan.intervals())


def damage(data: dict[str, object], change: str) -> str:
    if change == "version":
        return json.dumps(data | {"version": 99})
    if change == "counts":
        return json.dumps(data | {"train_rows": 1})
    if change == "field":
        return json.dumps({name: value for name, value in data.items() if name != "files"})
    return "{" if change == "torn" else "[]"


@pytest.mark.parametrize("change", ["version", "counts", "field", "torn", "list"])
def test_a_plan_that_cannot_be_used_says_what_to_do(
    spec: RefreshSpec, root: Path, window: Window, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "plan.json"
    unchecked_plan(spec, root, window).dump(path)
    path.write_text(damage(json.loads(path.read_text()), change))
    with pytest.raises(PlanError, match=r"run the .*check"):
        ReadPlan.load(path)


def test_splitmix64_is_the_published_one() -> None:
    # First outputs of the reference generator seeded with 0 and with 1.
    assert [int(value) for value in splitmix64(np.array([0, 1]))] == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]


def test_power_of_two_tables_get_the_same_rows_as_the_modulo(spec: RefreshSpec) -> None:
    column = next(column for column in spec.contract.columns if column.name == "product")
    ids = np.array([-5, 0, 7, 2**62])
    for size in (1000, 1024):
        rows = table_rows(column.model_copy(update={"num_embeddings": size}), ids)
        assert rows.tolist() == [int(value) % size for value in splitmix64(ids)]


def test_the_holdout_is_a_fraction_of_entities_and_another_salt_is_another_holdout() -> None:
    entities = np.arange(20_000)
    first, second = HoldoutRule(0.05, 1).held_out(entities), HoldoutRule(0.05, 2).held_out(entities)
    assert 0.04 < first.mean() < 0.06
    assert (first & second).mean() < 0.01
    assert np.array_equal(first, HoldoutRule(0.05, 1).held_out(entities))


def test_a_larger_table_leaves_landed_files_valid_and_another_type_does_not(spec: RefreshSpec) -> None:
    def changed(**update: object) -> Contract:
        return Contract(
            columns=[
                column.model_copy(update=update) if column.name == "price" else column
                for column in spec.contract.columns
            ]
        )

    assert contract_hash(changed(max=7.0)) != contract_hash(spec.contract)
    larger = [
        column.model_copy(update={"num_embeddings": 5000}) if column.table_name == "product" else column
        for column in spec.contract.columns
    ]
    assert contract_hash(Contract(columns=larger)) == contract_hash(spec.contract)
