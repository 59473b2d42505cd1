"""Whose a refresh is and where its training jobs queue, as Airflow knows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ett_airflow.placement import pool_arguments, team_arguments
from ett_airflow.stack.pools import pools_of

from trainer.spec import RefreshSpec, load_spec

TINY = Path(__file__).parents[1] / "e2e" / "refreshes" / "tiny.yaml"


@pytest.fixture
def placed(tmp_path: Path) -> RefreshSpec:
    text = TINY.read_text().replace("name: tiny", "name: tiny\nteam: ranking")
    path = tmp_path / "tiny.yaml"
    path.write_text(text.replace("resources: {", "resources: {pool: gpu-a, "))
    return load_spec(path)


def test_launch_and_train_queue_in_the_pool_of_their_cluster_and_train_goes_first(placed: RefreshSpec) -> None:
    launch, train = (pool_arguments(task, placed) for task in ("launch", "train"))
    assert launch["pool"] == train["pool"] == "gpu-a"
    assert train["priority_weight"] > launch["priority_weight"]
    assert train["weight_rule"] == "absolute"


def test_tasks_that_hold_no_devices_are_not_held_by_the_pool(placed: RefreshSpec) -> None:
    assert pool_arguments("publish", placed) == {}


def test_a_spec_without_pool_or_team_leaves_airflow_s_defaults() -> None:
    spec = load_spec(TINY)
    assert pool_arguments("train", spec) == {}
    assert team_arguments(spec) == {}


def test_the_team_is_the_owner_that_airflow_filters_by(placed: RefreshSpec) -> None:
    assert team_arguments(placed) == {"owner": "ranking"}


def test_the_pools_of_all_readable_specs_are_found(placed: RefreshSpec, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("name: [")
    (tmp_path / "poolless.yaml").write_text(TINY.read_text())
    assert pools_of(tmp_path) == {"gpu-a"}
