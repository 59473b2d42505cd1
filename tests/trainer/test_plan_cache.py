"""Sharding plans on disk: what comes back, when a plan is found, and what a damaged file does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from training_job import small_spec

from trainer.model import build_model
from trainer.model.initialization import table_configs
from trainer.model.plan_cache import PlanCache, PlanFormatError, PlanKey, plan_to_json
from trainer.model.shard_metadata import ShardMetadataSource, sharders_for


def plan() -> ShardingPlan:
    shards = [ShardMetadata([0, 0], [1000, 8], "rank:0/cpu"), ShardMetadata([1000, 0], [1000, 8], "rank:1/cpu")]
    sharding = ParameterSharding("row_wise", "fused", [0, 1], EnumerableShardingSpec(shards))
    return ShardingPlan({"sparse_arch.tables": EmbeddingModuleShardingPlan({"product_id": sharding})})


def key(*, ranks: int = 2, factory: str = "trainer.model.dlrm:dlrm", **constraints: ParameterConstraints) -> PlanKey:
    tables = table_configs(build_model(small_spec(model={"factory": factory})))
    return PlanKey(tables=tables, constraints=constraints, topology=Topology(world_size=ranks, compute_device="cpu"))


def test_a_kept_plan_comes_back_as_it_was(tmp_path: Path):
    cache = PlanCache(tmp_path / "new")
    assert cache.load(key()) is None
    cache.store(key(), plan())
    loaded = cache.load(key())
    assert loaded is not None
    assert plan_to_json(loaded) == plan_to_json(plan())
    assert loaded.plan["sparse_arch.tables"] == plan().plan["sparse_arch.tables"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [cache.path(key()).name]


def test_a_plan_is_for_its_ranks_tables_and_constraints_only():
    digests = {
        key().digest,
        key(ranks=4).digest,
        key(product_id=ParameterConstraints(sharding_types=["table_wise"])).digest,
        PlanKey(tables={}, constraints={}, topology=key().topology).digest,
    }
    assert len(digests) == 4
    assert key().digest in digests


def test_a_table_looked_up_row_by_row_has_a_plan_of_its_own(tmp_path: Path):
    by_row = key(factory="trainer.model.attention:dlrm_attention")
    assert {name.split(".")[-3] for name in by_row.tables} == {"embeddings", "embedding_bags"}
    assert by_row.digest == key(factory="trainer.model.attention:dlrm_attention").digest
    assert by_row.digest != key().digest
    cache = PlanCache(tmp_path)
    planner = EmbeddingShardingPlanner(topology=by_row.topology)
    planned = planner.plan(
        build_model(small_spec(model={"factory": "trainer.model.attention:dlrm_attention"})),
        sharders_for(ShardMetadataSource.PLAN),
    )
    assert set(planned.plan) == {"sparse_arch.embedding_bag_collection", "sequence_arch.embedding_collection"}
    cache.store(by_row, planned)
    assert cache.load(key()) is None
    loaded = cache.load(by_row)
    assert loaded is not None
    assert plan_to_json(loaded) == plan_to_json(planned)
    assert loaded.plan == planned.plan


def test_another_process_finds_the_same_key():
    code = "import test_plan_cache as here; print(here.key().digest)"
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONHASHSEED": "4"}
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert told.stdout.strip() == key().digest, told.stderr


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "modules": {}}', '{"format": 1, "modules": {"a": 3}}'])
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str):
    cache = PlanCache(tmp_path)
    cache.path(key()).write_text(text)
    assert cache.load(key()) is None
    assert str(cache.path(key())) in caplog.text
    cache.store(key(), plan())
    assert cache.load(key()) is not None


def test_a_plan_with_more_than_the_format_holds_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    unusual = plan()
    unusual.plan["sparse_arch.tables"]["product_id"].stochastic_rounding = True
    with pytest.raises(PlanFormatError, match="stochastic_rounding"):
        plan_to_json(unusual)
    PlanCache(tmp_path).store(key(), unusual)
    assert "not kept" in caplog.text
    assert list(tmp_path.iterdir()) == []
