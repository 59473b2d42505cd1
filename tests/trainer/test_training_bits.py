"""A job that was killed ends with the bits of one that was not: weights, optimizer state, schedule and metrics."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from saved_state import differing
from training_job import Job

from ett_reports.levels import reduce
from ett_reports.reader import read_log
from trainer.checkpoint import CheckpointRef, Progress, newest_complete

JobFactory = Callable[..., Job]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BATCH = 32
OFTEN = {"interval_s": 0.3, "keep": 3}
NOISY = {"model": {"factory": "noisy_model:noisy"}, "training": {"warmup_steps": 60, "batch_size": BATCH}}


def one_batch_more_on_rank_0(job: Job) -> Job:
    """Plan fewer rows of the last row group, so that of two ranks the first has one row, and thus one batch, more."""
    plan = json.loads(job.folder.plan_path.read_text())
    dropped = (plan["train_rows"] - 1) % (2 * BATCH)
    group = plan["files"][-1]["row_groups"][-1]
    for counts, name in ((group, "rows"), (group, "train_rows"), (plan, "train_rows")):
        counts[name] -= dropped
    job.folder.plan_path.write_text(json.dumps(plan))
    job.planned -= dropped
    return job


@pytest.fixture(scope="module")
def undisturbed(new_job: JobFactory) -> Job:
    """A run with random numbers in its model and a learning-rate schedule, that nothing disturbed."""
    job = one_batch_more_on_rank_0(new_job("bits", **NOISY))
    assert job.run() == [0, 0], job.log()
    return job


def test_c14_a_rank_with_one_batch_fewer_stops_with_the_others_and_no_row_is_lost(undisturbed: Job) -> None:
    job = undisturbed
    assert job.planned % (2 * BATCH) == 1
    first, second = job.cursors(attempt=1), job.cursors(attempt=1, rank=1)
    assert first == second
    assert first[-1] == job.planned
    assert len(first) == job.planned // (2 * BATCH) + 1
    assert job.quality("progressive")["rows"] == job.planned


def further_checkpoint(job: Job, cursor: int) -> CheckpointRef | None:
    newest = newest_complete(job.folder.checkpoints_dir)
    return newest if newest and newest.cursor > cursor else None


def killed_after_a_checkpoint(job: Job, *, victim: int) -> CheckpointRef:
    """Run an attempt until it has saved further than it resumed from and gone on, then kill -9 one of its two ranks."""
    before = newest_complete(job.folder.checkpoints_dir)
    ranks = job.start()
    saved = job.wait_for("another checkpoint", lambda: further_checkpoint(job, before.cursor if before else 0))
    ranks[victim].kill()
    codes = job.finish(ranks, timeout_s=60)
    assert codes[victim] == -signal.SIGKILL, "it had ended before it was killed"
    assert codes[1 - victim] == 1, job.log()
    newest = newest_complete(job.folder.checkpoints_dir)
    assert newest is not None
    assert newest.cursor >= saved.cursor
    return newest


@pytest.mark.chaos
def test_c8_a_job_that_resumes_twice_moves_on_each_time_and_ends_with_the_same_bits(
    new_job: JobFactory, undisturbed: Job
) -> None:
    job = one_batch_more_on_rank_0(new_job("bits-killed", **NOISY, checkpoint=OFTEN))
    saves = [killed_after_a_checkpoint(job, victim=1), killed_after_a_checkpoint(job, victim=0)]
    assert differing(saves[1].path, undisturbed.folder.anchor_dir)  # or the comparison sees nothing
    assert job.run() == [0, 0], job.log()

    assert differing(job.folder.anchor_dir, undisturbed.folder.anchor_dir) == []
    assert progress_at_end(job) == progress_at_end(undisturbed)
    assert job.quality("holdout") == undisturbed.quality("holdout")

    assert 0 < saves[0].cursor < saves[1].cursor < job.planned
    assert [job.points("restored", attempt=number)[0]["cursor"] for number in (2, 3)] == [ref.cursor for ref in saves]
    report = reduce(read_log(job.folder.events_dir))
    trained = [job.cursors(attempt=number)[-1] for number in (1, 2)]
    replayed = [reached - ref.cursor for reached, ref in zip(trained, saves, strict=True)]
    # A killed rank's last steps may be missing from its log, never from the checkpoint that they are counted from.
    for failure, rows in zip(report.failures, replayed, strict=True):
        assert rows <= failure.replayed_samples <= rows + 16 * 2 * BATCH
    assert report.high_water_mark == job.planned


def progress_at_end(job: Job) -> Progress:
    return CheckpointRef.open(job.folder.anchor_dir).manifest().progress


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_rows_are_trained_once_whatever_the_number_of_ranks_becomes(new_job: JobFactory) -> None:
    """2 -> 4 -> 2 -> 1 ranks; at each checkpoint what is trained and what remains are the whole plan."""
    job = new_job("ranks", checkpoint=OFTEN)
    cursor = 0
    for world_size in (2, 4, 2):
        ranks = job.start(ranks=world_size)
        job.wait_for("another checkpoint", lambda: further_checkpoint(job, cursor))  # noqa: B023 - called at once
        ranks[-1].kill()
        assert job.finish(ranks, timeout_s=60)[:-1] == [1] * (world_size - 1), job.log()
        newest = newest_complete(job.folder.checkpoints_dir)
        assert newest is not None
        cursor = newest.cursor
        progress = newest.manifest().progress
        assert progress.world_size == len(progress.ranks) == world_size
        assert cursor + sum(interval.rows for interval in progress.remaining) == job.planned
        assert progress.metrics["progressive"][1:] and sum(progress.metrics["progressive"][1:]) == cursor
    assert job.run(ranks=1) == [0], job.log()
    assert job.points("restored", attempt=4)[0]["cursor"] == cursor
    assert job.cursors(attempt=4)[-1] == job.planned == job.quality("progressive", attempt=4)["rows"]
