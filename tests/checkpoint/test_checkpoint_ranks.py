"""Saving and restoring over real ranks: resharding, dying ranks, failing ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import checkpoint_ranks as ranks
import pytest
import torch

from tests.rank_processes import run_ranks
from trainer.checkpoint import CheckpointMode, CheckpointRef, read_reference
from trainer.checkpoint.errors import MissingManifestError
from trainer.run_folder import RunFolder
from trainer.storage import located, names_in

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
        ("row_wise", 2, "table_wise", 2),
        ("table_wise", 1, "row_wise", 2),
    ],
)
def test_a_restore_is_exact_over_any_ranks_and_sharding(
    saved: dict[tuple[str, int], tuple[Path, dict[str, Any]]], kind: str, world_size: int, into: str, onto: int
) -> None:
    """Also case C5: the values are those of the saved step."""
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
    assert [list(rank.remaining) for rank in progress.ranks] == [ranks.share_of(rank) for rank in range(world_size)]
    assert progress.metrics == {"rows": sum(10 + rank for rank in range(world_size))}


def test_c11_saved_on_4_ranks_loaded_on_2(tmp_path: Path) -> None:
    """No row of a table and none of the data is dropped."""
    before = run_ranks(4, ranks.save, tmp_path, "row_wise")[0]
    first, second = run_ranks(2, ranks.load, tmp_path, "row_wise")
    _check_equal(before["truth"], first["loaded"])  # gathered on rank 0
    for progress in (first["progress"], second["progress"]):
        assert progress.world_size == 4
        assert progress.remaining == [interval for rank in range(4) for interval in ranks.share_of(rank)]
        assert progress.metrics == {"rows": 10 + 11 + 12 + 13}


def test_c12_saved_row_wise_on_2_ranks_loaded_on_1(
    saved: dict[tuple[str, int], tuple[Path, dict[str, Any]]],
) -> None:
    """Every row is identical."""
    root, before = saved["row_wise", 2]
    [after] = run_ranks(1, ranks.load, root, "row_wise")
    _check_equal(before["truth"], after["loaded"])


def _check_equal(saved: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(loaded[name], tensor), name


def test_a_synchronous_save_holds_the_same(tmp_path: Path) -> None:
    before = run_ranks(2, ranks.save, tmp_path, "row_wise", CheckpointMode.SYNC)[0]
    after = run_ranks(2, ranks.load, tmp_path, "row_wise")[0]
    assert all(torch.equal(after["loaded"][name], tensor) for name, tensor in before["truth"].items())


@pytest.mark.chaos
@pytest.mark.parametrize("mode", CheckpointMode)
def test_c1_a_rank_killed_in_mid_save_hangs_nobody_and_costs_that_save_only(
    tmp_path: Path, mode: CheckpointMode
) -> None:
    survivor, killed = run_ranks(2, ranks.save_then_die, tmp_path, mode)
    assert killed == -signal.SIGKILL
    assert "no word from ranks [1]" in survivor["error"]
    assert survivor["newest"] == 1


def test_a_rank_that_cannot_write_fails_the_save_on_all_at_once(tmp_path: Path) -> None:
    first, second = run_ranks(2, ranks.save_with_a_failing_rank, tmp_path)
    assert "rank 1 could not write its part" in first
    assert "No space left on device" in first
    assert "No space left on device" in second


@pytest.mark.chaos
def test_c4_an_anchor_that_a_stopped_rank_holds_up_fails_on_the_other_and_is_none(tmp_path: Path) -> None:
    error, _ = run_ranks(2, ranks.save_anchor_beside_a_stopped_rank, tmp_path)
    assert "no commit within" in error or "no word from ranks [1]" in error
    anchor = RunFolder.of("movies", "r1", tmp_path).anchor_dir
    with pytest.raises(MissingManifestError):
        CheckpointRef.open(anchor)


def test_what_befalls_one_rank_alone_stops_all_and_no_older_checkpoint_is_taken(tmp_path: Path) -> None:
    first, second = run_ranks(2, ranks.restore_while_one_rank_has_no_storage, tmp_path)
    assert first.startswith("PeerFailedError: ") and "rank 1 failed while it was being restored" in first
    assert second == "OSError: [Errno 5] Input/output error"


def test_ranks_save_and_restore_in_an_object_store(s3: str, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    assert run_ranks(2, ranks.save_in_store, tmp_path, s3, variables) == ["step-1", "step-1"]
    bucket = located(s3)
    [folder] = names_in(bucket / "checkpoints")
    assert names_in(bucket / "checkpoints" / folder) == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]


def test_ranks_take_the_same_checkpoint_when_one_finds_damage(tmp_path: Path) -> None:
    assert run_ranks(2, ranks.save_twice_and_damage, tmp_path) == [1, 1]


def test_the_anchor_merges_the_ranks_references_and_opens_unsharded(tmp_path: Path) -> None:
    first, _ = run_ranks(2, ranks.save_anchor, tmp_path)
    assert first["difference"] < 1e-6
    table = read_reference(Path(first["path"]))
    assert table["row"].to_pylist() == [0, 1, 2, 3]
    assert table["logit"].to_pylist() == [0.0, 0.0, 1.0, -1.0]
    assert sorted(path.name.partition(".")[2] for path in Path(first["path"]).iterdir()) == [
        "__0_0.distcp",
        "__1_0.distcp",
        "json",
        "metadata",
        "reference.parquet",
    ]
