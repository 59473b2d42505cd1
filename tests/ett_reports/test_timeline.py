"""Rules of the timeline beyond the golden cases: live jobs, missing sources, ranks, hangs, clocks, provenance."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett_reports.events import L1, Cause, Component, Phase, Provenance, Source
from ett_reports.report import JobState
from tests.ett_reports.story import SECOND, Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "events")


def test_live_job_ends_now_and_its_open_step_is_unattributed(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).at(20).begin(0).steps(5)
    report = story.report(now=76)
    assert report.state is JobState.LIVE and report.wall_ns == 76 * SECOND
    assert report.l2[Component.UNATTRIBUTED] == 26 * SECOND  # 20 s of nothing told, 6 s of an open step
    assert report.l1[L1.IN_LOOP] == 6 * SECOND and report.l1[L1.SHUTDOWN] == 0


def test_live_job_is_in_shutdown_once_the_stream_is_consumed(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).point("stream", planned_samples=50).begin(0).steps(5)
    assert story.report(now=57).l1[L1.SHUTDOWN] == 7 * SECOND


def test_live_job_is_in_shutdown_once_a_shutdown_phase_has_opened(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(5).at(52).leave_open(Phase.FINAL_CHECKPOINT)
    trainer.recorder.heartbeat()
    report = story.report(now=57)
    assert report.l1[L1.SHUTDOWN] == 7 * SECOND and report.exposed(Phase.FINAL_CHECKPOINT) == 5 * SECOND


def test_live_job_still_queued(story: Story) -> None:
    story.launcher.point("submitted", attempt=1, devices=4)
    report = story.report(now=500)
    assert report.state is JobState.LIVE and report.exposed(Phase.QUEUE_WAIT) == 500 * SECOND
    assert report.ett == 0 and report.held_ett is None


def test_waiting_between_two_attempts(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(5)
    story.die(1, 50, "preemption")
    story.launcher.at(80).point("submitted", attempt=2, devices=1)
    report = story.report(now=100)
    assert report.state is JobState.LIVE
    assert report.exposed(Phase.RETRY_WAIT) == 30 * SECOND and report.exposed(Phase.QUEUE_WAIT) == 20 * SECOND
    assert report.l1[L1.RECOVERY] == 50 * SECOND and not report.failures[0].recovered


def test_running_without_heartbeats_is_not_training_time(story: Story) -> None:
    """P21: the scheduler says RUNNING, the pods are pending."""
    story.submit(1, 0)
    report = story.report(now=3600)
    assert report.productive_ns == 0 and report.exposed(Phase.LAUNCHER_INIT) == 3600 * SECOND


def test_dead_run_closes_at_its_last_sign_of_life(story: Story) -> None:
    """P32: a crashed run must not stay 'running'."""
    trainer = story.trainer(1, 0).begin(0).steps(5)
    trainer.at(63).recorder.heartbeat()
    report = story.report(now=100_000)
    assert report.state is JobState.FAILED and report.wall_ns == 63 * SECOND
    assert report.attempts[0].end_provenance is Provenance.INFERRED
    assert report.failures[0].cause is Cause.INFRASTRUCTURE and not report.failures[0].recovered
    assert report.provenance[Provenance.INFERRED] == 13 * SECOND


def test_resumed_run_counts_both_segments_and_the_gap(story: Story) -> None:
    """P32: 76 h + 2 h -> 78 h and the gap between."""
    story.trainer(1, 0).begin(0).steps(76, seconds=3600)
    story.trainer(2, 80 * 3600).begin(760).steps(2, seconds=3600).finish()
    report = story.report()
    assert report.productive_ns == 78 * 3600 * SECOND and report.wall_ns == 82 * 3600 * SECOND
    assert report.exposed(Phase.RETRY_WAIT) == 4 * 3600 * SECOND
    assert any("no launcher" in line or "release" in line for line in report.degraded)


def test_trainer_alone_needs_no_launcher(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    trainer = story.trainer(1, 0)
    with trainer.span(Phase.TRAIN_MODULE, until=10):
        pass
    trainer.begin(0).steps(9).finish()
    report = story.report()
    assert report.state is JobState.COMPLETED and report.ett == 0.9
    assert report.held_ett == 0.9


def test_trainer_that_closed_its_log_before_the_stream_was_consumed_has_failed(story: Story) -> None:
    trainer = story.trainer(1, 0).point("stream", planned_samples=100).begin(0).steps(5)
    trainer.recorder.close()
    assert story.report().state is JobState.FAILED


def test_hang_fails_at_its_last_progress(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(10)
    story.launcher.at(400).point("detected", attempt=1, cause="hang")
    story.launcher.at(410).point("released", attempt=1, outcome="failed", cause="hang", exit_codes=[-9])
    story.submit(2, 420)
    story.trainer(2, 420).begin(100).steps(10).finish()
    story.complete(2, 520)
    failure = story.report().failures[0]
    assert failure.cause is Cause.HANG
    assert (failure.lost_ns, failure.detect_ns, failure.ttr_ns) == (0, 300 * SECOND, 20 * SECOND)


def test_hang_in_startup_fails_at_its_last_heartbeat(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(30)
    trainer.recorder.heartbeat()
    story.launcher.at(200).point("detected", attempt=1, cause="hang")
    story.launcher.point("released", attempt=1, outcome="failed", cause="hang")
    report = story.report()
    assert report.failures[0].failure_ns == 30 * SECOND and report.failures[0].detect_ns == 170 * SECOND
    assert report.exposed(Phase.HANG) == 170 * SECOND


def test_a_hang_that_healed_is_in_loop(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(5)
    with trainer.span(Phase.HANG, until=110):
        pass
    trainer.steps(5).finish()
    story.complete(1, 160)
    report = story.report()
    assert report.nof == 0 and report.l1[L1.IN_LOOP] == 60 * SECOND and report.exposed(Phase.HANG) == 60 * SECOND


def test_in_process_rewind_is_in_loop_replay(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(10)
    trainer.begin(50).steps(10).finish()
    story.complete(1, 200)
    report = story.report()
    assert report.exposed(Phase.REPLAY) == 50 * SECOND == report.l1[L1.IN_LOOP] and report.nof == 0


def test_straddling_step_is_split_by_samples_replay_first(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(10)
    story.die(1, 100, "application")
    story.submit(2, 200)
    story.trainer(2, 200).begin(97).steps(1).finish()
    story.complete(2, 210)
    report = story.report()
    assert report.exposed(Phase.REPLAY) == 3 * SECOND and report.productive_ns == 107 * SECOND
    assert report.failures[0].recovery_ns == 103 * SECOND


def test_time_taken_out_of_a_step_is_the_largest_that_any_rank_lost(story: Story) -> None:
    story.submit(1, 0, devices=2)
    for rank, wait in ((0, 1), (1, 4)):
        trainer = story.trainer(1, 0, rank=rank, world_size=2).begin(0)
        trainer.steps(1).steps(5, wait=wait)
        trainer.finish()
    story.complete(1, 60)
    report = story.report()
    assert report.exposed(Phase.DATA_STALL) == 20 * SECOND
    straggler = next(item for item in report.stragglers if item.phase is Phase.DATA_STALL)
    assert (straggler.slowest_rank, straggler.max_ns, straggler.median_ns) == (1, 20 * SECOND, 5 * SECOND)


def test_startup_ends_with_the_last_rank(story: Story) -> None:
    story.submit(1, 0, devices=2)
    for rank, ready in ((0, 20), (1, 30)):
        trainer = story.trainer(1, 0, rank=rank, world_size=2, host=f"node-{rank}")
        with trainer.span(Phase.TRAIN_MODULE, until=ready):
            pass
        trainer.begin(0).steps(1, seconds=40 - ready).steps(6).finish()
    story.complete(1, 100)
    report = story.report()
    assert report.l1[L1.TTS] == 30 * SECOND == report.exposed(Phase.TRAIN_MODULE)
    straggler = next(item for item in report.stragglers if item.phase is Phase.TRAIN_MODULE)
    assert straggler.slowest_host == "node-1" and straggler.excess_ns == 10 * SECOND


def test_missing_ranks_are_reported(story: Story) -> None:
    story.submit(1, 0, devices=4)
    story.trainer(1, 0, rank=2, world_size=4).begin(0).steps(5).finish()
    story.complete(1, 50)
    report = story.report()
    assert report.attempts[0].missing_ranks == (0, 1, 3)
    assert any("3 ranks (0, 1, 3)" in line for line in report.degraded)


def test_background_work_has_busy_time_only(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(10)
    trainer.phase(Phase.CHECKPOINT_BLOCKING, 20, 60, thread="uploader:9")
    trainer.finish()
    story.complete(1, 100)
    report = story.report()
    assert report.productive_ns == 100 * SECOND
    assert report.exposed(Phase.CHECKPOINT_BLOCKING) == 0 and report.busy(Phase.CHECKPOINT_BLOCKING) == 40 * SECOND


def test_recorded_wait_leads_to_the_other_branch(story: Story) -> None:
    """Fast-batch off: the first batch waits for the warm-up; compile beside it explains nothing."""
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(100)
    warm_up = trainer.phase(Phase.PREPROCESSING, 0, 60, thread="dpp:1")
    trainer.phase(Phase.TRAIN_MODULE, 0, 90, thread="model:2")
    trainer.phase(Phase.COMPILE, 60, 100, thread="main:0", waits_for=[warm_up])
    trainer.begin(0).steps(10).finish()
    story.complete(1, 200)
    report = story.report()
    assert report.exposed(Phase.PREPROCESSING) == 60 * SECOND and report.exposed(Phase.COMPILE) == 40 * SECOND
    assert report.exposed(Phase.TRAIN_MODULE) == 0


def test_waits_in_a_circle_are_dropped_and_counted(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(100)
    one = trainer.recorder.identity.process + "#1"
    two = trainer.recorder.identity.process + "#2"
    trainer.phase(Phase.COMPILE, 0, 100, thread="a", waits_for=[two])
    trainer.phase(Phase.PREPROCESSING, 0, 90, thread="b", waits_for=[one])
    trainer.begin(0).steps(1).finish()
    story.complete(1, 110)
    report = story.report()
    assert report.exposed(Phase.COMPILE) == 100 * SECOND
    assert report.quality.dropped_cycles >= 0 and report.wall_ns == 110 * SECOND


def test_innermost_span_of_a_thread_wins(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0)
    with trainer.span(Phase.TRAIN_MODULE, until=100):
        trainer.at(30)
        with trainer.span(Phase.COMPILE, until=70):
            pass
    trainer.begin(0).steps(10).finish()
    story.complete(1, 200)
    report = story.report()
    assert report.exposed(Phase.COMPILE) == 40 * SECOND and report.exposed(Phase.TRAIN_MODULE) == 60 * SECOND
    assert report.busy(Phase.TRAIN_MODULE) == 100 * SECOND


def test_two_attempts_stepping_at_once_are_productive_once_and_flagged(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(10)
    story.submit(2, 50)
    story.trainer(2, 50).at(80).begin(100).steps(5).finish()
    story.die(1, 105, "infrastructure")
    story.complete(2, 130)
    report = story.report()
    assert report.productive_ns <= report.wall_ns == 130 * SECOND
    assert report.quality.concurrent_steps and any("at once" in line for line in report.flags)


def test_no_shift_fits_is_clamped_and_counted(story: Story) -> None:
    story.submit(1, 100)
    story.trainer(1, 0, skew=-300).begin(0).steps(60).finish()
    story.complete(1, 300)
    report = story.report()
    assert report.clock_shifts[0].clamped and report.quality.clamped_clocks == 1
    assert report.wall_ns == 200 * SECOND and report.ett is not None and report.ett <= 1
    assert report.provenance[Provenance.ESTIMATED] > 0


def test_coarse_scheduler_clock_moves_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    scheduler = story.process(Source.SCHEDULER, "slurm", host="head")
    second = 1_000_000_000
    scheduler.point("submitted", attempt=1, devices=1, resolution_ns=second).point("launched", attempt=1)
    trainer = story.trainer(1, 0).begin(0).steps(5).at(50.7)
    trainer.finish()
    scheduler.at(50).point("released", attempt=1, outcome="completed", resolution_ns=second)
    report = story.report()
    assert report.clock_shifts == () and report.wall_ns == 50_700_000_000


def test_devices_held_and_lost(story: Story) -> None:
    story.launcher.point("submitted", attempt=1, devices=4).at(20).point("allocated", attempt=1, devices=4)
    story.launcher.point("launched", attempt=1)
    story.trainer(1, 20).at(30).begin(0).steps(7).finish()
    story.complete(1, 100)
    report = story.report()
    assert report.held_ns == 80 * SECOND and report.held_ett == 70 / 80
    assert report.device_held_ns == 320 * SECOND and report.device_lost_ns == 40 * SECOND
    assert report.gpu_hours_lost == pytest.approx(40 / 3600)


def test_lost_and_not_replayed_stays_productive_and_is_shown(story: Story) -> None:
    """The data was not rewound with the model."""
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(60)
    story.die(1, 600, "infrastructure")
    story.submit(2, 700)
    second = story.trainer(2, 700).point("restored", cursor=500, step=50)
    second.at(701).begin(600).steps(40).finish()
    story.complete(2, 1101)
    report = story.report()
    assert report.productive_ns == 1000 * SECOND
    assert report.lost_not_replayed_samples == 100 and report.lost_not_replayed_ns == 100 * SECOND
    assert report.failures[0].lost_not_replayed_samples == 100


def test_abandoned_progress_is_shown(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(50).point("checkpoint_dispatched", step=50)
    trainer.steps(2).point("checkpoint_durable", step=50, bytes=1).steps(8)
    story.die(1, 600, "application")
    report = story.report()
    assert report.state is JobState.FAILED and report.lost_not_replayed_samples == 100
    assert any("nobody recovered" in line for line in report.flags)


def test_checkpoint_totals(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0)
    for step in (10, 20, 30):
        trainer.steps(10)
        with trainer.span(Phase.CHECKPOINT_BLOCKING, until=trainer.clock.at / SECOND + 2):
            pass
        trainer.point("checkpoint_dispatched", step=step).at(trainer.clock.at / SECOND + 3)
        trainer.point("checkpoint_durable", step=step)
    trainer.steps(1).finish()
    story.complete(1, 325)
    totals = story.report().checkpoints
    assert totals.saves == 3 and totals.blocking_ns == 6 * SECOND and totals.losing_failures == 0
    assert totals.durable_ns == (3 * SECOND,) * 3 and totals.interval_ns == 105 * SECOND


def test_jobs_of_other_tasks_have_no_part_in_the_jobs_time(story: Story) -> None:
    story.submit(1, 100)
    story.trainer(1, 100).begin(0).steps(5).finish()
    story.complete(1, 150)
    check = story.process(Source.TRAINER, "check", start=0, attempt=1, task="check_schema")
    with check.span(Phase.PREPROCESSING, until=90):
        pass
    assert story.report().wall_ns == 50 * SECOND


def test_causes_by_exit_code(story: Story) -> None:
    story.submit(1, 0)
    story.launcher.at(10).point("failure", attempt=1, exit_code=65)
    story.launcher.point("released", attempt=1, outcome="failed", exit_codes=[65])
    story.submit(2, 20)
    story.launcher.at(30).point("failure", attempt=2, exit_code=-9)
    story.launcher.point("released", attempt=2, outcome="failed", exit_codes=[-9])
    story.submit(3, 40)
    story.launcher.at(50).point("released", attempt=3, outcome="failed", exit_codes=[75], cause="preemption")
    report = story.report()
    assert [failure.cause for failure in report.failures] == [Cause.DATA, Cause.INFRASTRUCTURE, Cause.PREEMPTION]
    assert report.l1[L1.SHUTDOWN] == 0 and report.productive_ns == 0
