"""Section 6: clocks of launcher, operators and ranks that disagree, waits between ranks, and attempts out of place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett_reports.events import L1, Phase, Provenance, Source
from tests.ett_reports.story import SECOND, Process, Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "events")


def operators(story: Story, released: float) -> None:
    """What the operators of `launch` and `train` stamped: they bound the launcher."""
    launch = story.process(Source.AIRFLOW, "airflow-launch-t1", start=10, host="airflow")
    launch.point("task_code_start", task="launch", try_number=1)
    train = story.process(Source.AIRFLOW, "airflow-train-t1", start=released, host="airflow")
    train.point("task_end", task="train", try_number=1, outcome="success")


@pytest.mark.parametrize(("skew", "shift"), [(-30, 30), (25, -25), (0, 0)], ids=["behind", "ahead", "right"])
def test_launcher_host_is_put_on_airflows_clock(tmp_path: Path, skew: float, shift: float) -> None:
    """Nothing is submitted before the task's code ran, nor released after the task's end."""
    story = Story(tmp_path / "events")
    operators(story, released=100)
    launcher = story.process(Source.LAUNCHER, "launcher-train-a1", start=10, skew=skew, host="login")
    launcher.point("submitted", attempt=1, devices=1).point("allocated", attempt=1).point("launched", attempt=1)
    story.trainer(1, 10, skew=skew).at(20).begin(0).steps(8).finish()
    launcher.at(100).point("released", attempt=1, outcome="completed", exit_codes=[0])
    report = story.report()
    assert report.wall_ns == 90 * SECOND and report.productive_ns == 80 * SECOND
    moved = {item.source: item.shift_ns for item in report.clock_shifts}
    assert moved == ({} if not shift else {Source.LAUNCHER: shift * SECOND, Source.TRAINER: shift * SECOND})
    assert (report.provenance[Provenance.ESTIMATED] > 0) == bool(shift)


def test_many_ranks_whose_clocks_disagree_stay_within_the_launch_and_the_release(story: Story) -> None:
    """Eight hosts from 200 s behind to 150 s ahead: each is moved by its own smallest shift, and reported with it."""
    skews = [-200, -150, -100, -50, 0, 50, 100, 150]
    story.submit(1, 100, devices=8)
    for rank, skew in enumerate(skews):
        trainer = story.trainer(1, 100, rank=rank, world_size=8, skew=skew, host=f"node-{rank}")
        with trainer.span(Phase.TRAIN_MODULE, until=130):
            pass
        trainer.begin(0).steps(17).finish()
    story.complete(1, 300)
    report = story.report()
    assert report.wall_ns == 200 * SECOND and report.productive_ns == 170 * SECOND
    assert report.l1[L1.TTS] == 30 * SECOND == report.exposed(Phase.TRAIN_MODULE)
    assert {item.host: item.shift_ns for item in report.clock_shifts} == {
        f"node-{rank}": -skew * SECOND for rank, skew in enumerate(skews) if skew
    }
    assert all(item.width_ns == 0 and not item.clamped for item in report.clock_shifts)
    assert report.quality.clamped_clocks == 0
    # One module took all ranks equally long: a wrong clock makes nobody a straggler.
    assert all(item.excess_ns == 0 for item in report.stragglers)


def test_a_rank_without_a_shift_that_fits_is_clamped_and_the_others_are_not(story: Story) -> None:
    story.submit(1, 0, devices=2)
    for rank, last in ((0, 10), (1, 14)):
        story.trainer(1, 0, rank=rank, world_size=2, host=f"node-{rank}").begin(0).steps(last).finish()
    story.complete(1, 100)
    report = story.report()
    assert report.wall_ns == 100 * SECOND >= report.productive_ns
    assert [(item.host, item.clamped) for item in report.clock_shifts] == [("node-1", True)]


def gang(story: Story, skews: list[float]) -> list[Process]:
    """The ranks of one attempt from t=0, each on a host of its own."""
    size = len(skews)
    story.submit(1, 0, devices=size)
    hosts = enumerate(skews)
    return [story.trainer(1, 0, rank=n, world_size=size, skew=skew, host=f"node-{n}") for n, skew in hosts]


def test_a_wait_recorded_across_ranks_leads_to_the_rank_that_was_waited_for(story: Story) -> None:
    """Rank 1 plans the sharding for 60 s; rank 0 waits for it and then restores 20 s: the wait is rank 1's work."""
    first, second = gang(story, [0, 0])
    plan = second.phase(Phase.TRAIN_MODULE, 0, 60)
    first.phase(Phase.PREPROCESSING, 0, 55, thread="dpp:2")
    first.phase(Phase.CHECKPOINT_RESTORE, 60, 80, waits_for=[plan.reference])
    second.at(70).begin(0).steps(1).steps(2).finish()
    first.at(80).begin(0).steps(2).finish()
    story.complete(1, 100)
    report = story.report()
    assert report.exposed(Phase.TRAIN_MODULE) == 60 * SECOND
    assert report.exposed(Phase.CHECKPOINT_RESTORE) == 20 * SECOND
    assert report.exposed(Phase.PREPROCESSING) == 0 and report.busy(Phase.PREPROCESSING) == 55 * SECOND
    ranks = [piece.rank for piece in report.segments if piece.phase is Phase.TRAIN_MODULE]
    assert ranks == [1]


def test_without_a_recorded_wait_the_walk_stays_on_its_rank(story: Story) -> None:
    """The same story without the wait: what rank 1 did explains nothing of rank 0's time."""
    first, second = gang(story, [0, 0])
    second.phase(Phase.TRAIN_MODULE, 0, 60)
    first.phase(Phase.PREPROCESSING, 0, 55, thread="dpp:2")
    first.phase(Phase.CHECKPOINT_RESTORE, 60, 80)
    second.at(70).begin(0).steps(1).steps(2).finish()
    first.at(80).begin(0).steps(2).finish()
    story.complete(1, 100)
    report = story.report()
    assert report.exposed(Phase.TRAIN_MODULE) == 0 and report.exposed(Phase.PREPROCESSING) == 55 * SECOND
    assert report.exposed(Phase.UNATTRIBUTED) == 5 * SECOND


def test_waits_across_ranks_hold_when_their_clocks_disagree(story: Story) -> None:
    """The rank that is waited for runs 40 s ahead: its shift comes first, then the walk."""
    first, second = gang(story, [0, 40])
    plan = second.phase(Phase.TRAIN_MODULE, 0, 60)
    first.phase(Phase.CHECKPOINT_RESTORE, 60, 80, waits_for=[plan.reference])
    for trainer in (first, second):
        trainer.at(80).begin(0).steps(2).finish()
    story.complete(1, 100)
    report = story.report()
    assert [(item.host, item.shift_ns) for item in report.clock_shifts] == [("node-1", -40 * SECOND)]
    assert report.exposed(Phase.TRAIN_MODULE) == 60 * SECOND
    assert report.exposed(Phase.CHECKPOINT_RESTORE) == 20 * SECOND


@pytest.mark.parametrize("at", [0, 50, 120, 300], ids=["before", "within", "between", "after"])
def test_an_attempt_of_no_length_bounds_the_wall_time_wherever_it_lies(story: Story, at: float) -> None:
    """Submitted, refused and released in one instant: no piece of its own, and no hole where it lies."""
    story.submit(2, 20)
    story.trainer(2, 20).begin(0).steps(8)
    story.die(2, 100, "infrastructure")
    story.submit(3, 150)
    story.trainer(3, 150).begin(80).steps(2).finish()
    story.complete(3, 170)
    refused = story.process(Source.LAUNCHER, "launcher-refused", start=at, host="head")
    number = 1 if at < 20 else 4
    refused.point("submitted", attempt=number, devices=1)
    refused.point("released", attempt=number, outcome="failed", cause="application", exit_codes=[1])
    report = story.report()
    assert report.wall_ns == (max(at, 170) - min(at, 20)) * SECOND
    assert report.productive_ns == 100 * SECOND
    assert sum(report.l2.values()) == sum(report.l1.values()) == report.wall_ns
    before_and_after = max(0, 20 - at) + max(0, at - 170)
    assert report.exposed(Phase.RETRY_WAIT) == (50 + before_and_after) * SECOND


def test_an_attempt_of_no_length_alone_has_no_ratio(story: Story) -> None:
    story.launcher.point("submitted", attempt=1, devices=1)
    story.launcher.point("released", attempt=1, outcome="failed", cause="application")
    report = story.report()
    assert report.wall_ns == 0 and report.ett is None and report.nof == 1


def test_a_step_that_begins_before_its_attempt_counts_from_the_attempts_start(story: Story) -> None:
    """A scheduler that stamps the submission late: the first 35 s of steps lie before the job's t = 0."""
    story.launcher.at(50).point("launched", attempt=1)
    trainer = story.trainer(1, 50).begin(0)
    story.launcher.at(85).point("submitted", attempt=1, devices=1)
    trainer.steps(10).finish()
    story.complete(1, 150)
    report = story.report()
    assert report.wall_ns == 65 * SECOND == report.productive_ns
    assert sum(report.l2.values()) == sum(report.l1.values()) == report.wall_ns and report.ett == 1


def test_time_taken_out_of_a_step_before_the_attempts_start_is_clipped_with_it(story: Story) -> None:
    story.launcher.at(50).point("launched", attempt=1)
    trainer = story.trainer(1, 50).begin(0)
    story.launcher.at(85).point("submitted", attempt=1, devices=1)
    with trainer.span(Phase.COMPILE, until=90):
        pass
    trainer.steps(1).steps(5, wait=2).finish()
    story.complete(1, 150)
    report = story.report()
    assert report.wall_ns == 65 * SECOND
    assert report.exposed(Phase.COMPILE) + report.exposed(Phase.DATA_STALL) + report.productive_ns == report.wall_ns
