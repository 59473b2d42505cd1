"""Startup's graph: order by need, one span a stage, and mistakes in the graph."""

from __future__ import annotations

from graphlib import CycleError
from pathlib import Path

import pytest

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from trainer.stages import Stage, in_order, run_in_sequence
from trainer.watchdog import HangLimits, Watchdog

FIRST, SECOND, THIRD = Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.TRAIN_MODULE


def stage(phase: Phase, *after: Phase) -> Stage:
    return Stage(phase, lambda span: None, after=after)


def watchdog(recorder: Recorder) -> Watchdog:
    limits = HangLimits(stage_s=60.0, factor=10.0, floor_s=60.0)
    return Watchdog(limits, on_hang=print, alive=recorder.heartbeat)


def test_a_stage_comes_after_what_it_needs_and_otherwise_in_the_order_given():
    stages = [stage(THIRD, SECOND), stage(FIRST), stage(SECOND)]
    assert [found.phase for found in in_order(stages)] == [FIRST, SECOND, THIRD]
    independent = [stage(THIRD), stage(FIRST), stage(SECOND)]
    assert in_order(independent) == independent


def test_a_need_that_nothing_meets_and_a_cycle_are_refused():
    with pytest.raises(ValueError, match="train_module needs process_group"):
        in_order([stage(THIRD, SECOND)])
    with pytest.raises(CycleError):
        in_order([stage(FIRST, SECOND), stage(SECOND, FIRST)])


def test_every_stage_is_a_span_that_waits_for_the_one_before(tmp_path: Path):
    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)
    ran: list[Phase] = []
    stages = [Stage(phase, lambda span, phase=phase: ran.append(phase)) for phase in (FIRST, SECOND, THIRD)]
    with Recorder(tmp_path, identity) as recorder:
        run_in_sequence(stages, recorder, watchdog(recorder))
    (process,) = read_log(tmp_path).processes
    assert [span.phase for span in process.spans] == ran == [FIRST, SECOND, THIRD]
    assert [span.waits_for for span in process.spans] == [(), ("p#1",), ("p#2",)]


def test_a_stage_that_fails_ends_startup_and_its_span_says_so(tmp_path: Path):
    def fail(span: object) -> None:
        raise OSError("no device")

    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)
    with Recorder(tmp_path, identity) as recorder, pytest.raises(OSError, match="no device"):
        run_in_sequence([Stage(FIRST, fail), stage(SECOND)], recorder, watchdog(recorder))
    (process,) = read_log(tmp_path).processes
    assert [(span.phase, span.failed) for span in process.spans] == [(FIRST, True)]


def test_every_stage_is_watched_for_as_long_as_it_asks(tmp_path: Path):
    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)
    with Recorder(tmp_path, identity) as recorder:
        watched = watchdog(recorder)
        seen: list[Phase] = []
        stages = [
            Stage(phase, lambda span: seen.append(watched.phase), silence_s=silence_s)
            for phase, silence_s in ((FIRST, 0.0), (SECOND, 60.0))
        ]
        run_in_sequence(stages, recorder, watched)
    assert seen == [FIRST, SECOND]
