"""Whole training jobs on generated data, with real ranks: they learn, count exactly, and survive what befalls them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from training_job import Job

from trainer.checkpoint import newest_complete, read_reference
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
        assert list(phases)[: len(stages) + 1] == ["launcher_init", *stages]
        assert phases["compile"] > 0
        assert "recompile" not in phases


def test_a_finished_run_started_again_trains_nothing(whole: Job) -> None:
    attempt = whole.attempts + 1
    assert whole.run() == [0, 0], whole.log()
    assert whole.cursors(attempt=attempt) == []
    assert whole.points("completed", attempt=attempt) == [{"cursor": whole.planned}]


@pytest.mark.chaos
@pytest.mark.parametrize("ranks_after", [2, 1])
def test_a_killed_rank_costs_no_sample(new_job: JobFactory, whole: Job, ranks_after: int) -> None:
    job = new_job(f"killed-{ranks_after}", checkpoint=OFTEN)
    ranks = job.start()
    job.wait_for("a checkpoint", lambda: newest_complete(job.folder.checkpoints_dir))
    ranks[1].kill()
    codes = job.finish(ranks, timeout_s=30)  # the survivor notices the closed connection, not a timeout
    assert codes == [1, -signal.SIGKILL], job.log()
    error = json.loads((job.folder.logs_dir / "a1" / "error-0.json").read_text())
    assert error["cause"] == "infrastructure"

    saved = newest_complete(job.folder.checkpoints_dir)
    assert saved is not None
    assert 0 < saved.cursor < job.planned
    assert job.run(ranks=ranks_after) == [0] * ranks_after, job.log()
    assert job.points("restored", attempt=2)[0]["cursor"] == saved.cursor
    cursors = job.cursors(attempt=2)
    assert saved.cursor < cursors[0]
    assert cursors[-1] == job.planned
    assert job.quality("progressive", attempt=2)["rows"] == job.planned
    assert job.quality("holdout", attempt=2)["ne"] == pytest.approx(whole.quality("holdout")["ne"], abs=0.03)


def test_more_ranks_go_on_where_one_stopped(new_job: JobFactory) -> None:
    job = new_job("grown", checkpoint=OFTEN)
    (rank,) = job.start(ranks=1)
    job.wait_for("a checkpoint", lambda: newest_complete(job.folder.checkpoints_dir))
    rank.send_signal(signal.SIGTERM)
    assert job.finish([rank]) == [75], job.log()
    assert job.run(ranks=2) == [0, 0], job.log()
    assert job.cursors(attempt=1)[-1] == job.points("restored", attempt=2)[0]["cursor"]
    assert job.cursors(attempt=2)[-1] == job.planned
    assert job.quality("progressive", attempt=2)["rows"] == job.planned


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


def test_a_file_changed_under_the_plan_ends_every_rank_as_bad_data(new_job: JobFactory) -> None:
    job = new_job("changed")
    plan = json.loads(job.folder.plan_path.read_text())
    plan["files"][-1]["mtime_ns"] += 1
    job.folder.plan_path.write_text(json.dumps(plan))
    assert job.run() == [65, 65], job.log()
    for rank in (0, 1):
        error = json.loads((job.folder.logs_dir / "a1" / f"error-{rank}.json").read_text())
        assert error["cause"] == "data"
        assert plan["files"][-1]["path"] in error["message"]
    assert not job.folder.anchor_dir.exists()


def test_with_every_technique_off_it_still_trains_and_recompiles_in_the_loop(new_job: JobFactory) -> None:
    job = new_job("baseline", optimizations={"preset": "baseline"}, checkpoint=OFTEN, training={"batch_size": 30})
    assert -(-job.planned // 2) % 30 > 1  # a last batch of another size, and not so small that it runs eagerly
    assert job.run() == [0, 0], job.log()
    phases = job.phases(attempt=1)
    assert phases["compile"] > 0
    assert phases["recompile"] > 0  # the last batch is smaller, and nothing told the compiler that sizes vary
    assert job.cursors(attempt=1)[-1] == job.planned
    cache = job.points("compile_cache")[0]
    assert cache["archived_bytes"] == 0
    assert "hit" not in cache


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
