"""What-if: by the critical path, in every attempt, and never more than the upper bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett_reports.events import Phase
from ett_reports.levels import reduce
from ett_reports.log import EventLog
from ett_reports.reader import read_log
from ett_reports.whatif import WhatIfError, shorten, with_interval, without_failure
from tests.ett_reports.story import Process, Story


def startup(trainer: Process, at: float, compile_s: float, warm_up: float) -> float:
    """Compilation beside the data pipeline's warm-up and model creation; the first step waits for all."""
    trainer.phase(Phase.COMPILE, at, at + compile_s)
    trainer.phase(Phase.PREPROCESSING, at, at + warm_up, waits_for=())
    trainer.phase(Phase.TRAIN_MODULE, at, at + 60)
    return at + max(compile_s, warm_up)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """Two attempts: 254 s compile beside 240 s warm-up, 600 s of steps, dies; again from the save at 500 s."""
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    first = story.trainer(1, 0)
    ready = startup(first, 0, 254, 240)
    first.at(ready).begin(0).steps(60)
    story.die(1, ready + 600, "infrastructure")
    story.submit(2, ready + 700)
    second = story.trainer(2, ready + 700)
    again = startup(second, ready + 700, 200, 20)
    second.at(again).point("restored", cursor=500).begin(500).steps(50).finish()
    story.complete(2, again + 500)
    return read_log(story.folder)


def test_a_shortened_branch_exposes_its_neighbour(log: EventLog) -> None:
    result = shorten(log, Phase.COMPILE, 0.5)
    first, second = result.attempts
    assert (first.attempt, first.saved_s) == (1, pytest.approx(14))
    assert first.newly_exposed_s == {Phase.PREPROCESSING: pytest.approx(240)}
    assert (second.attempt, second.saved_s) == (2, pytest.approx(100))
    assert result.saved_s == pytest.approx(114)
    job = reduce(log)
    assert result.ett == job.ett
    assert result.new_ett == pytest.approx(job.productive_ns / (job.wall_ns - 114e9))


def test_a_hidden_branch_saves_nothing(log: EventLog) -> None:
    result = shorten(log, Phase.PREPROCESSING, 0)
    assert result.saved_s == 0
    assert result.new_ett == result.ett


def test_the_upper_bound_holds(log: EventLog) -> None:
    for factor in (0, 0.3, 0.9):
        result = shorten(log, Phase.COMPILE, factor)
        assert result.upper_bound_s is not None and result.saved_s <= result.upper_bound_s


def test_a_longer_phase_costs_time(log: EventLog) -> None:
    assert shorten(log, Phase.COMPILE, 1.5).saved_s == pytest.approx(-(127 + 100))


def test_serial_phases_lose_what_they_exposed(log: EventLog) -> None:
    job = reduce(log)
    for phase in (Phase.REPLAY, Phase.RETRY_WAIT):
        assert shorten(log, phase, 0.25).saved_s == pytest.approx(0.75 * job.exposed(phase) / 1e9)


def test_what_waited_for_a_phase_moves_up_with_it(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    trainer = story.trainer(1, 0)
    first = trainer.phase(Phase.TRAIN_MODULE, 0, 60)
    trainer.phase(Phase.PREPROCESSING, 0, 30)
    second = trainer.recorder.record_span(Phase.COMPILE, _mono(trainer, 65), _mono(trainer, 165), waits_for=[first])
    trainer.recorder.record_span(Phase.PRE_TRAIN_SETUP, _mono(trainer, 165), _mono(trainer, 170), waits_for=[second])
    trainer.at(170).begin(0).steps(3).finish()
    story.complete(1, 200)
    log = read_log(story.folder)
    assert shorten(log, Phase.TRAIN_MODULE, 0.5).saved_s == pytest.approx(30)
    assert shorten(log, Phase.COMPILE, 0).saved_s == pytest.approx(100)
    assert shorten(log, Phase.PREPROCESSING, 0).saved_s == 0


def _mono(process: Process, seconds: float) -> int:
    return round(seconds * 1e9) + process.clock.uptime


def test_a_phase_inside_another_shortens_both(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    trainer = story.trainer(1, 0)
    with trainer.span(Phase.PRE_TRAIN_SETUP, until=100):
        trainer.at(20)
        with trainer.span(Phase.CHECKPOINT_RESTORE, until=80):
            pass
    trainer.begin(0).steps(3).finish()
    story.complete(1, 130)
    assert shorten(read_log(story.folder), Phase.CHECKPOINT_RESTORE, 0.5).saved_s == pytest.approx(30)
    assert shorten(read_log(story.folder), Phase.PRE_TRAIN_SETUP, 0.5).saved_s == pytest.approx(50)


def test_a_removed_failure_takes_its_recovery_with_it(log: EventLog) -> None:
    job = reduce(log)
    result = without_failure(job, 1)
    assert result.saved_s == pytest.approx(job.failures[0].recovery_ns / 1e9)
    assert result.new_ett == pytest.approx(job.productive_ns / (job.wall_ns - job.failures[0].recovery_ns))


def test_changes_that_make_no_sense_are_refused(log: EventLog) -> None:
    job = reduce(log)
    with pytest.raises(WhatIfError, match="attempt 2 did not fail; failed attempts: 1"):
        without_failure(job, 2)
    with pytest.raises(WhatIfError, match="step is not an overhead"):
        shorten(log, Phase.STEP, 0.5)
    with pytest.raises(WhatIfError, match="factor -1: expected 0 or more"):
        shorten(log, Phase.COMPILE, -1)
    with pytest.raises(WhatIfError, match="plugin_init did not run in shop/run-1; what ran: retry_wait"):
        shorten(log, Phase.PLUGIN_INIT, 0.5)
    with pytest.raises(WhatIfError, match="fewer than two checkpoints"):
        with_interval(job, 600)


def test_another_checkpoint_interval_follows_eq_2(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    trainer = story.trainer(1, 0).begin(0)
    for save in range(1, 11):
        trainer.steps(10)
        trainer.point("checkpoint_dispatched", step=10 * save)
        with trainer.span(Phase.CHECKPOINT_BLOCKING, until=trainer.clock.at / 1e9 + 5):
            pass
    trainer.finish()
    story.complete(1, trainer.clock.at / 1e9)
    job = reduce(read_log(story.folder))
    assert job.checkpoints.saves == 10 and job.checkpoints.losing_failures == 0
    present = (job.checkpoints.interval_ns or 0) / 1e9
    loop = job.checkpoints.in_loop_ns / 1e9
    result = with_interval(job, 2 * present)
    assert result.saved_s == pytest.approx(loop / present * 5 / 2)


def test_a_phase_at_its_own_length_changes_nothing(log: EventLog) -> None:
    for total in reduce(log).phases:
        if total.phase not in (Phase.STEP, Phase.UNATTRIBUTED):
            assert shorten(log, total.phase, 1).saved_s == pytest.approx(0, abs=1e-6)
