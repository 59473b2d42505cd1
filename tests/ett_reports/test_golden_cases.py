"""The golden cases of section 11, each through a real event log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett_reports.events import L1, Cause, Component, Phase
from ett_reports.report import JobReport
from tests.ett_reports.story import SECOND, Story, ns


def percent(report: JobReport) -> float:
    assert report.ett is not None
    return round(100 * report.ett, 2)


def seconds(value: int) -> float:
    return value / SECOND


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "events")


def rollback(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(60)
    story.die(1, 600, "infrastructure")
    story.submit(2, 900)
    second = story.trainer(2, 900).point("restored", cursor=500, step=50, checkpoint="step-50").begin(500).steps(50)
    second.finish()
    story.complete(2, 1400)


def test_rollback(story: Story) -> None:
    rollback(story)
    report = story.report()
    assert report.productive_ns == 1000 * SECOND and report.wall_ns == 1400 * SECOND
    assert percent(report) == 71.43
    assert report.nof == 1 and report.failures[0].cause is Cause.INFRASTRUCTURE
    assert seconds(report.failures[0].recovery_ns) == 400
    assert seconds(report.exposed(Phase.REPLAY)) == 100
    assert report.failures[0].replayed_samples == 100


def test_clean_preemption(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(60)
    story.die(1, 600, "preemption")
    story.submit(2, 900)
    story.trainer(2, 900).begin(600).steps(40).finish()
    story.complete(2, 1300)
    report = story.report()
    assert percent(report) == 76.92
    assert report.nof == 1 and report.failures[0].cause is Cause.PREEMPTION
    assert report.exposed(Phase.REPLAY) == 0


def test_dies_before_its_first_step(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(50)
    story.die(1, 500, "infrastructure")
    for attempt, start, death in ((2, 700, 750), (3, 800, 850)):
        story.submit(attempt, start)
        story.trainer(attempt, start)
        story.die(attempt, death, "application")
    story.submit(4, 900)
    story.trainer(4, 900).at(1000).begin(500).steps(50).finish()
    story.complete(4, 1500)
    report = story.report()
    assert percent(report) == 66.67
    assert report.nof == 3
    assert report.l1[L1.TTS] == 0
    assert [seconds(failure.recovery_ns) for failure in report.failures] == [250, 100, 150]


def test_crash_in_first_startup(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0)
    story.die(1, 120, "application")
    story.submit(2, 180)
    story.trainer(2, 180).at(300).begin(0).steps(60).finish()
    story.complete(2, 900)
    report = story.report()
    assert percent(report) == 66.67
    assert report.nof == 1
    assert seconds(report.l1[L1.TTS]) == 120
    assert seconds(report.failures[0].recovery_ns) == 180


def test_mid_run_recompile(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(30)
    with trainer.span(Phase.RECOMPILE, until=410):
        pass
    trainer.steps(1).steps(29).finish()
    assert trainer.clock.at == ns(710)
    story.complete(1, 710)
    report = story.report()
    assert percent(report) == 84.51
    assert seconds(report.l2[Component.PT2_COMPILE]) == 110
    assert seconds(report.exposed(Phase.RECOMPILE)) == 110


def test_skewed_second_host(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(60)
    story.die(1, 600, "infrastructure")
    story.submit(2, 700)
    second = story.trainer(2, 700, host="node-b", skew=-200).begin(500).steps(50)
    second.finish()
    story.complete(2, 1200)
    report = story.report()
    assert percent(report) == 83.33
    shift = next(item for item in report.clock_shifts if item.host == "node-b")
    assert seconds(shift.shift_ns) == 200 and shift.width_ns == 0 and not shift.clamped
    assert sum(report.l2.values()) == report.wall_ns == 1200 * SECOND


def test_overrunning_event(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(10)
    trainer.at(165).begin(100)
    trainer.at(166)
    trainer.phase(Phase.EVALUATION, 100, 166)
    trainer.steps(1, seconds=9).steps(3).finish()
    story.complete(1, 205)
    report = story.report()
    assert seconds(report.exposed(Phase.EVALUATION)) == 66
    assert seconds(report.productive_ns) == 139
    assert percent(report) == 67.80


def test_overrunning_event_without_a_gap_between_steps(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0).steps(10)
    with trainer.span(Phase.EVALUATION, until=166):
        pass
    trainer.steps(1, seconds=9).steps(3).finish()
    story.complete(1, 205)
    assert percent(story.report()) == 67.80


def test_name_used_again(tmp_path: Path) -> None:
    yesterday = Story(tmp_path / "monday" / "events")
    rollback(yesterday)
    yesterday.report()
    today = Story(tmp_path / "tuesday" / "events")
    today.submit(1, 0)
    today.trainer(1, 0).at(10).begin(0).steps(9).finish()
    today.complete(1, 100)
    report = today.report()
    assert report.job == "shop/run-1" and percent(report) == 90.0 and report.nof == 0


def test_overlap(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(254)
    trainer.phase(Phase.COMPILE, 0, 254)
    trainer.phase(Phase.PREPROCESSING, 0, 240)
    trainer.phase(Phase.TRAIN_MODULE, 0, 60)
    trainer.begin(0).steps(10).finish()
    story.complete(1, 354)
    report = story.report()
    exposed = [report.exposed(phase) for phase in (Phase.COMPILE, Phase.PREPROCESSING, Phase.TRAIN_MODULE)]
    assert exposed == [254 * SECOND, 0, 0]
    busy = [report.busy(phase) for phase in (Phase.COMPILE, Phase.PREPROCESSING, Phase.TRAIN_MODULE)]
    assert busy == [254 * SECOND, 240 * SECOND, 60 * SECOND]


def test_papers_figure_1(story: Story) -> None:
    """Effective 90, compile 30, init 15, scheduling 6, wasted + shutdown 9.1 of 151.5 minutes."""
    story.launcher.point("submitted", attempt=1, devices=128).at(360).point("allocated", attempt=1, devices=128)
    story.launcher.point("launched", attempt=1)
    trainer = story.trainer(1, 360)
    with trainer.span(Phase.TRAIN_MODULE, until=360 + 900):
        pass
    with trainer.span(Phase.COMPILE, until=360 + 900 + 1800):
        pass
    trainer.begin(0).steps(270)
    with trainer.span(Phase.CHECKPOINT_BLOCKING, until=3060 + 2700 + 456):
        pass
    trainer.at(3060 + 2700 + 456).begin().steps(270)
    with trainer.span(Phase.FINAL_CHECKPOINT, until=3060 + 5400 + 456 + 90):
        pass
    trainer.at(151.5 * 60).finish()
    story.complete(1, 151.5 * 60)
    report = story.report()
    assert report.ett is not None and round(100 * report.ett, 1) == 59.4
    minutes = {component: round(value / SECOND / 60, 1) for component, value in report.l2.items()}
    assert minutes[Component.EFFECTIVE_TRAINING] == 90.0
    assert minutes[Component.PT2_COMPILE] == 30.0
    assert minutes[Component.TRAINER_INIT] == 15.0
    assert minutes[Component.SCHEDULING] == 6.0
    assert round(minutes[Component.WASTED_TRAINING] + minutes[Component.SHUTDOWN], 1) == 9.1
    assert minutes[Component.UNATTRIBUTED] == 1.4
    assert round(100 * report.l2[Component.UNATTRIBUTED] / report.wall_ns, 1) == 0.9


def test_dies_in_replay(story: Story) -> None:
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(60)
    story.die(1, 604, "infrastructure")
    story.submit(2, 900)
    story.trainer(2, 900).begin(500).steps(4)
    story.die(2, 947, "infrastructure")
    story.submit(3, 1200)
    story.trainer(3, 1200).begin(500).steps(50).finish()
    story.complete(3, 1700)
    report = story.report()
    assert percent(report) == 58.82 and report.nof == 2
    parts = [(seconds(f.recovery_ns), seconds(f.lost_ns), seconds(f.ttr_ns)) for f in report.failures]
    assert parts == [(340, 4, 336), (360, 7, 353)]
    assert seconds(report.exposed(Phase.REPLAY)) == 140
    assert seconds(report.exposed(Phase.LOST_STEP)) == 11


def test_in_trainer_publish_fails(story: Story) -> None:
    story.submit(1, 0)
    first = story.trainer(1, 0).point("stream", planned_samples=1000).begin(0).steps(100)
    with first.span(Phase.FINAL_CHECKPOINT, until=1020):
        pass
    first.leave_open(Phase.IN_TRAINER_PUBLISH)
    story.die(1, 1100, "application")
    story.submit(2, 1300)
    second = story.trainer(2, 1300)
    with second.span(Phase.IN_TRAINER_PUBLISH, until=1400):
        pass
    second.finish()
    story.complete(2, 1400)
    report = story.report()
    assert percent(report) == 71.43
    failure = report.failures[0]
    assert report.nof == 1 and failure.cause is Cause.APPLICATION
    assert (seconds(failure.recovery_ns), seconds(failure.lost_ns), seconds(failure.ttr_ns)) == (280, 80, 200)
    assert seconds(report.l1[L1.SHUTDOWN]) == 120
    assert seconds(report.exposed(Phase.IN_TRAINER_PUBLISH)) == 180


def test_grace_save(story: Story) -> None:
    story.submit(1, 0)
    first = story.trainer(1, 0).begin(0).steps(60)
    first.at(604).point("preemption_notice").steps(1, seconds=6)
    with first.span(Phase.FINAL_CHECKPOINT, until=640):
        pass
    story.launcher.at(640).point("released", attempt=1, outcome="failed", cause="preemption", exit_codes=[75])
    story.submit(2, 900)
    story.trainer(2, 900).begin(610).steps(39).finish()
    story.complete(2, 1290)
    report = story.report()
    assert percent(report) == 77.52
    failure = report.failures[0]
    assert report.nof == 1 and failure.cause is Cause.PREEMPTION
    assert seconds(failure.recovery_ns) == 290 and failure.detect_ns == 0
    assert report.exposed(Phase.REPLAY) == 0
    assert seconds(report.exposed(Phase.FINAL_CHECKPOINT)) == 30
    assert report.l1[L1.SHUTDOWN] == 0


def test_lazy_compile(story: Story) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(100).begin(0)
    with trainer.span(Phase.COMPILE, until=354):
        pass
    trainer.steps(1, seconds=10).steps(9).finish()
    story.complete(1, 454)
    report = story.report()
    assert percent(report) == 22.03
    assert seconds(report.l1[L1.TTS]) == 354
    assert seconds(report.exposed(Phase.COMPILE)) == 254
    assert report.l1[L1.IN_LOOP] == 0


@pytest.mark.parametrize("compile_start", [101, 107.5, 110])
def test_lazy_compile_anywhere_in_the_step(story: Story, compile_start: float) -> None:
    story.submit(1, 0)
    trainer = story.trainer(1, 0).at(100).begin(0).at(compile_start)
    with trainer.span(Phase.COMPILE, until=compile_start + 254):
        pass
    trainer.steps(1, seconds=364 - compile_start - 254).steps(9).finish()
    story.complete(1, 454)
    report = story.report()
    assert percent(report) == 22.03 and seconds(report.l1[L1.TTS]) == 354


def test_standby(story: Story) -> None:
    story.submit(1, 0)
    first = story.trainer(1, 0).begin(0).steps(60)
    story.submit(2, 550)
    second = story.trainer(2, 550)
    with second.span(Phase.TRAIN_MODULE, until=680):
        pass
    with first.span(Phase.TEARDOWN, until=660):
        pass
    story.die(1, 600, "infrastructure", released=660)
    second.begin(600).steps(40).finish()
    story.complete(2, 1080)
    report = story.report()
    assert percent(report) == 92.59
    assert seconds(report.failures[0].recovery_ns) == 80
    assert seconds(report.l2[Component.TRAINER_INIT]) == 80
    assert seconds(report.busy(Phase.TRAIN_MODULE)) == 130
    assert report.exposed(Phase.TEARDOWN) == 0 and seconds(report.busy(Phase.TEARDOWN)) == 60
