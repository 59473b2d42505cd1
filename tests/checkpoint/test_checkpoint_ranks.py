"""Saving and restoring over real ranks: resharding, dying ranks, failing ranks."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import checkpoint_ranks as ranks
import pyarrow.parquet as pq
import pytest
import torch
from checkpoint_ranks import run_ranks

from trainer.checkpoint import CheckpointMode

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[Path, dict[str, Any]]]:
    made = {}
    for kind, world_size in (("table_wise", 2), ("row_wise", 2), ("table_wise", 1)):
        root = tmp_path_factory.mktemp(f"{kind}-{world_size}")
        made[kind, world_size] = root, run_ranks(world_size, ranks.save, root, kind)[0]
    return made


@pytest.mark.parametrize(
    ("kind", "world_size", "into", "onto"),
    [
        ("table_wise", 2, "table_wise", 2),
        ("table_wise", 2, "table_wise", 1),
        ("table_wise", 2, "row_wise", 2),
        ("row_wise", 2, "row_wise", 1),
        ("row_wise", 2, "table_wise", 2),
        ("table_wise", 1, "row_wise", 2),
    ],
)
def test_a_restore_is_exact_over_any_ranks_and_sharding(
    saved: dict[tuple[str, int], tuple[Path, dict[str, Any]]], kind: str, world_size: int, into: str, onto: int
) -> None:
    """Cases C5 (the values of the saved step), C11 (what remains to read survives) and C12 (every row is there)."""
    root, before = saved[kind, world_size]
    after = run_ranks(onto, ranks.load, root, into)[0]
    assert after["loaded"].keys() == before["truth"].keys()
    for name, tensor in before["truth"].items():
        assert torch.equal(after["loaded"][name], tensor), name
    torch.testing.assert_close(after["predicted"], before["predicted"], rtol=0, atol=1e-6)
    # One more step, which the optimizers' restored state decides as well.
    torch.testing.assert_close(after["after"], before["after"], rtol=0, atol=1e-5)
    progress = after["progress"]
    assert progress.world_size == world_size
    assert progress.remaining == [interval for rank in range(world_size) for interval in ranks.share_of(rank)]
    assert progress.metrics == {"rows": sum(10 + rank for rank in range(world_size))}


def test_a_synchronous_save_holds_the_same(tmp_path: Path) -> None:
    before = run_ranks(2, ranks.save, tmp_path, "row_wise", CheckpointMode.SYNC)[0]
    after = run_ranks(2, ranks.load, tmp_path, "row_wise")[0]
    assert all(torch.equal(after["loaded"][name], tensor) for name, tensor in before["truth"].items())


@pytest.mark.chaos
@pytest.mark.parametrize("mode", CheckpointMode)
def test_a_rank_killed_in_mid_save_hangs_nobody_and_costs_only_that_save(tmp_path: Path, mode: CheckpointMode) -> None:
    """Case C1."""
    survivor, killed = run_ranks(2, ranks.save_then_die, tmp_path, mode)
    assert killed == -signal.SIGKILL
    assert "no word from ranks [1]" in survivor["error"]
    assert survivor["newest"] == 1


def test_a_rank_that_cannot_write_fails_the_save_on_all_at_once(tmp_path: Path) -> None:
    first, second = run_ranks(2, ranks.save_with_a_failing_rank, tmp_path)
    assert "rank 1 could not write its part" in first
    assert "No space left on device" in first
    assert "No space left on device" in second


def test_ranks_take_the_same_checkpoint_when_one_finds_damage(tmp_path: Path) -> None:
    assert run_ranks(2, ranks.save_twice_and_damage, tmp_path) == [1, 1]


def test_the_anchor_merges_the_ranks_references_and_opens_unsharded(tmp_path: Path) -> None:
    first, _ = run_ranks(2, ranks.save_anchor, tmp_path)
    assert first["difference"] < 1e-6
    table = pq.read_table(Path(first["path"]) / "reference.parquet")
    assert table["row"].to_pylist() == [0, 1, 2, 3]
    assert table["logit"].to_pylist() == [0.0, 0.0, 1.0, -1.0]
    assert sorted(path.name for path in Path(first["path"]).iterdir()) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "manifest.json",
        "reference.parquet",
    ]
