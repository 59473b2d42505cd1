"""Whole training jobs on generated data, with real ranks: they learn, count exactly, and survive what befalls them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from saved_state import saved_tensors
from training_job import Job

from trainer.checkpoint import newest_complete, read_reference
from trainer.dpp.plan import FileIdentity, ReadPlan
from trainer.spec import WarmStart

JobFactory = Callable[..., Job]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OFTEN = {"interval_s": 0.3, "keep": 3}


@pytest.fixture(scope="module")
def whole(new_job: JobFactory) -> Job:
    """A run that nothing disturbed; what others are compared with."""
    job = new_job("whole")
    assert job.run() == [0, 0], job.log()
    return job


def test_job_trains_once_over_all_rows_and_learns(whole: Job) -> None:
    cursors = whole.cursors(attempt=1)
    assert cursors == sorted(set(cursors))
    assert cursors[-1] == whole.planned
    assert whole.points("stream") == [{"planned_samples": whole.planned}]
    assert whole.points("completed") == [{"cursor": whole.planned}]
    progressive, holdout = whole.quality("progressive"), whole.quality("holdout")
    assert progressive["rows"] == whole.planned
    assert holdout["auc"] > progressive["auc"] > 0.55
    assert holdout["ne"] < 1
    assert read_reference(whole.folder.anchor_dir).num_rows == holdout["rows"]


def test_startup_has_the_seven_stages_by_name_and_compiles_before_the_first_step(whole: Job) -> None:
    for rank in (0, 1):
        phases = whole.phases(attempt=1, rank=rank)
        stages = ["device_init", "process_group", "preprocessing", "train_module", "plugin_init"]
        stages += ["checkpoint_restore", "pre_train_setup", "compile", "first_batch"]
        first, *together = list(phases)[: len(stages) + 1]
        assert first == "launcher_init"
        assert sorted(together) == sorted(stages)  # they overlap: their order is the machine's
        assert phases["compile"] > 0
        assert "recompile" not in phases


def test_a_finished_run_started_again_trains_nothing(whole: Job) -> None:
    attempt = whole.attempts + 1
    assert whole.run() == [0, 0], whole.log()
    assert whole.cursors(attempt=attempt) == []
    assert whole.points("completed", attempt=attempt) == [{"cursor": whole.planned}]


@pytest.mark.chaos
def test_a_killed_rank_ends_the_others_at_once_as_infrastructure(new_job: JobFactory) -> None:
    job = new_job("killed", checkpoint=OFTEN)
    ranks = job.start()
    job.wait_for("a checkpoint", lambda: newest_complete(job.folder.checkpoints_dir))
    ranks[1].kill()
    codes = job.finish(ranks, timeout_s=30)  # the survivor notices the closed connection, not a timeout
    assert codes == [1, -signal.SIGKILL], job.log()
    error = json.loads((job.folder.logs_dir / "a1" / "error-0.json").read_text())
    assert error["cause"] == "infrastructure"


def test_a_warning_to_one_rank_stops_all_with_nothing_lost(new_job: JobFactory) -> None:
    job = new_job("preempted", checkpoint=OFTEN)
    ranks = job.start()
    job.wait_for("a checkpoint", lambda: newest_complete(job.folder.checkpoints_dir))
    ranks[1].send_signal(signal.SIGTERM)
    assert job.finish(ranks) == [75, 75], job.log()
    assert len(job.points("preemption_notice", rank=1)) == 1
    last = job.cursors(attempt=1)[-1]
    saved = newest_complete(job.folder.checkpoints_dir)
    assert saved is not None
    assert saved.cursor == last
    assert job.run() == [0, 0], job.log()
    assert last < job.cursors(attempt=2)[0]
    assert job.cursors(attempt=2)[-1] == job.planned
    assert job.quality("progressive", attempt=2)["rows"] == job.planned


def test_the_next_run_starts_from_the_anchor(new_job: JobFactory, whole: Job) -> None:
    anchor = WarmStart(run="whole", anchor=str(whole.folder.anchor_dir))
    warm, cold = new_job("warm", days=(5, 6), warm_start=anchor), new_job("cold", days=(5, 6))
    assert warm.run() == [0, 0], warm.log()
    assert cold.run() == [0, 0], cold.log()
    assert warm.points("warm_start") == [{"anchor": anchor.anchor, "run": "whole"}]
    assert warm.planned == cold.planned == warm.cursors(attempt=1)[-1]
    assert warm.quality("progressive")["ne"] < cold.quality("progressive")["ne"] - 0.01
    assert warm.quality("progressive")["auc"] > cold.quality("progressive")["auc"]


@pytest.mark.parametrize("number", [0, -1], ids=["of the first batch of one rank", "of the last batches"])
def test_a_file_changed_under_the_plan_ends_every_rank_as_bad_data(new_job: JobFactory, number: int) -> None:
    job = new_job(f"changed{number}")
    plan = json.loads(job.folder.plan_path.read_text())
    plan["files"][number]["mtime_ns"] += 1
    job.folder.plan_path.write_text(json.dumps(plan))
    assert job.run() == [65, 65], job.log()
    for rank in (0, 1):
        error = json.loads((job.folder.logs_dir / "a1" / f"error-{rank}.json").read_text())
        assert error["cause"] == "data"
        assert plan["files"][number]["path"] in error["message"]
    assert not job.folder.anchor_dir.exists()


def other_error(job: Job, rank: int) -> dict[str, str]:
    return dict(json.loads((job.folder.logs_dir / f"a{job.attempts}" / f"error-{rank}.json").read_text()))


def test_a_loss_that_is_not_finite_ends_all_ranks_by_the_rows_of_the_one_and_saves_nothing_of_it(
    new_job: JobFactory, landed: Path, tmp_path: Path
) -> None:
    shutil.copytree(landed, tmp_path / "data")
    job = new_job("poisoned", checkpoint=OFTEN, data_root=tmp_path / "data")
    path, ordinal = poison_a_row(job, file=2, after=3000)
    assert job.run() == [1, 1], job.log()
    errors = [other_error(job, rank) for rank in (0, 1)]
    assert errors[0]["message"] == errors[1]["message"]
    assert {error["cause"] for error in errors} == {"application"}
    message = errors[0]["message"]
    found = re.search(r"NonFiniteLossError: the loss of rank (\d) in step (\d+) is nan", message)
    assert found, message
    named = re.search(rf"{path} row group 0 training rows (\d+) to (\d+)", message)
    assert named, message
    assert int(named[1]) <= ordinal <= int(named[2])
    steps = len(job.cursors(attempt=1))
    assert int(found[2]) == steps  # it was the last one that was taken
    saved = newest_complete(job.folder.checkpoints_dir)
    assert saved is not None
    assert saved.step < steps
    assert all(tensor.isfinite().all() for tensor in saved_tensors(saved.path).values())
    assert not job.folder.anchor_dir.exists()


def poison_a_row(job: Job, *, file: int, after: int) -> tuple[str, int]:
    """Make one dense value NaN, which the schema check would have refused; returns the file and the row's ordinal."""
    plan = ReadPlan.load(job.folder.plan_path)
    path = Path(plan.files[file].path)
    table = pq.read_table(path)
    training = np.flatnonzero(~plan.holdout.held_out(table["household_id"].to_numpy()))
    values = table["basket_size"].to_numpy().copy()
    values[training[after]] = np.nan
    place = table.schema.get_field_index("basket_size")
    table = table.set_column(place, table.schema.field(place), pa.array(values))
    assert len(plan.files[file].row_groups) == 1
    pq.write_table(table, path, row_group_size=table.num_rows)
    with path.open("rb") as handle:
        changed = replace(plan.files[file], identity=FileIdentity.of(handle))
    replace(plan, files=(*plan.files[:file], changed, *plan.files[file + 1 :])).dump(job.folder.plan_path)
    return str(path), after


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_save_that_fails_ends_all_ranks_where_the_spec_says_so(new_job: JobFactory, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        job = new_job("full", checkpoint={**OFTEN, "root": str(small), "on_failure": "fail"})
        assert job.run() == [1, 1], job.log()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    errors = [other_error(job, rank) for rank in (0, 1)]
    assert errors[0]["message"] == errors[1]["message"]
    assert "BackgroundSaveError: rank" in errors[0]["message"]
    assert "No space left on device" in errors[0]["message"]
    assert job.cursors(attempt=1, rank=0) == job.cursors(attempt=1, rank=1)
    assert job.cursors(attempt=1)[-1] < job.planned


def test_a_later_run_takes_compiled_code_and_plan_from_the_refresh(new_job: JobFactory, whole: Job) -> None:
    job = new_job("again", days=(5, 6))
    assert job.run() == [0, 0], job.log()
    cache = job.points("compile_cache")[0]
    assert (cache["hit"], cache["graph_hits"], cache["graph_misses"]) == (True, 2, 0)
    assert job.notes("train_module", attempt=1)["plan"] == "cached"


def test_one_rank_needs_no_rendezvous(new_job: JobFactory) -> None:
    job = new_job("alone", days=(5, 6))
    environment = dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"), "")
    assert job.run(ranks=1, **environment) == [0], job.log()
    assert job.cursors(attempt=1)[-1] == job.planned
