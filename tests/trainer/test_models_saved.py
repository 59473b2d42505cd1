"""Models with pooled and with sequence tables: saved on some ranks, they go on exactly on others, and on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved_state import differing, saved_tensors
from sharding_ranks import predict_unsharded, restore_and_train, saved_in, train_and_save

from tests.rank_processes import run_ranks
from trainer.model.sharding import ShardMetadataSource

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ATTENTION = "attention:dlrm_attention"
PLAN, GATHERED = ShardMetadataSource.PLAN, ShardMetadataSource.GATHERED
Saved = dict[str, tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The attention model by kind of sharding, saved on 2 ranks."""
    made = {}
    for kind in ("table_wise", "row_wise", "column_wise"):
        root = tmp_path_factory.mktemp(kind)
        made[kind] = root, run_ranks(2, train_and_save, root, ATTENTION, kind, PLAN)[0]
    return made


@pytest.mark.parametrize(
    ("kind", "into", "onto", "metadata"),
    [
        ("table_wise", "table_wise", 2, PLAN),
        ("table_wise", "table_wise", 2, GATHERED),
        ("row_wise", "row_wise", 2, PLAN),
        ("row_wise", "table_wise", 1, PLAN),
        ("table_wise", "row_wise", 2, PLAN),
        ("column_wise", "column_wise", 2, PLAN),
    ],
)
def test_sequence_tables_and_their_optimizer_are_restored_exactly(
    saved: Saved, tmp_path: Path, kind: str, into: str, onto: int, metadata: ShardMetadataSource
) -> None:
    root, before = saved[kind]
    after = run_ranks(onto, restore_and_train, root, tmp_path, ATTENTION, into, metadata)[0]
    assert after["loaded"].keys() == before["truth"].keys()
    for name, tensor in before["truth"].items():
        assert torch.equal(after["loaded"][name], tensor), name
    assert differing(saved_in(root), saved_in(tmp_path)) == []
    torch.testing.assert_close(after["predicted"], before["predicted"], rtol=0, atol=1e-6)
    # One more step, which the optimizers' restored state decides as well; every rank has the same rows.
    assert after["loss"] == pytest.approx(before["losses"][-1], abs=1e-6)
    torch.testing.assert_close(after["after"], before["after"], rtol=0, atol=1e-5)


def test_a_checkpoint_names_sequence_tables_as_the_unsharded_model_does(saved: Saved) -> None:
    root, _ = saved["row_wise"]
    tensors = saved_tensors(saved_in(root))
    table = "sequence_arch.embedding_collection.embeddings.product_id.weight"
    assert tensors[f"model.{table}"].shape == (2000, 8)
    assert {name for name in tensors if name.startswith(f"sparse_optimizer.{table}")} == {
        f"sparse_optimizer.{table}.product_id.momentum1"
    }


def test_one_process_predicts_what_the_ranks_did(saved: Saved) -> None:
    for kind, (root, before) in saved.items():
        [predicted] = run_ranks(1, predict_unsharded, root, ATTENTION)
        torch.testing.assert_close(predicted, before["predicted"], rtol=0, atol=1e-6, msg=kind)


@pytest.mark.parametrize("kind", ["table_wise", "row_wise"])
def test_where_metadata_come_from_changes_no_bit_of_training(tmp_path: Path, saved: Saved, kind: str) -> None:
    root, planned = saved[kind]
    gathered = run_ranks(2, train_and_save, tmp_path, ATTENTION, kind, GATHERED)[0]
    assert gathered["losses"] == planned["losses"]
    assert differing(saved_in(root), saved_in(tmp_path)) == []


def test_dcn_v2_is_restored_exactly_on_another_number_of_ranks(tmp_path: Path) -> None:
    factory = "dcn_v2:dlrm_dcn_v2"
    root, again = tmp_path / "before", tmp_path / "again"
    before = run_ranks(2, train_and_save, root, factory, "row_wise", PLAN)[0]
    after = run_ranks(1, restore_and_train, root, again, factory, "table_wise", PLAN)[0]
    assert differing(saved_in(root), saved_in(again)) == []
    torch.testing.assert_close(after["predicted"], before["predicted"], rtol=0, atol=1e-6)
    assert after["loss"] == pytest.approx(before["losses"][-1], abs=1e-6)
