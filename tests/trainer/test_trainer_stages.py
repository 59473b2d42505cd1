"""Startup's graph: order by need, one span a stage, and mistakes in the graph."""

from __future__ import annotations

import time
from graphlib import CycleError
from pathlib import Path

import pytest

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.flight_recorder import FILE_NAME, read_flight
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from trainer.stages import Stage, alive, in_order, run_in_sequence

FIRST, SECOND, THIRD = Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.TRAIN_MODULE


def stage(phase: Phase, *after: Phase) -> Stage:
    return Stage(phase, lambda span: None, after=after)


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
        run_in_sequence(stages, recorder)
    (process,) = read_log(tmp_path).processes
    assert [span.phase for span in process.spans] == ran == [FIRST, SECOND, THIRD]
    assert [span.waits_for for span in process.spans] == [(), ("p#1",), ("p#2",)]


def test_a_stage_that_fails_ends_startup_and_its_span_says_so(tmp_path: Path):
    def fail(span: object) -> None:
        raise OSError("no device")

    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)
    with Recorder(tmp_path, identity) as recorder, pytest.raises(OSError, match="no device"):
        run_in_sequence([Stage(FIRST, fail), stage(SECOND)], recorder)
    (process,) = read_log(tmp_path).processes
    assert [(span.phase, span.failed) for span in process.spans] == [(FIRST, True)]


def last_beat(folder: Path) -> int:
    flight = read_flight(folder / "p" / FILE_NAME)
    assert flight is not None
    return flight.heartbeat_ns


def test_a_stage_that_may_be_silent_shows_that_it_is_alive_and_only_for_so_long(tmp_path: Path):
    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)
    with Recorder(tmp_path, identity) as recorder:
        before = last_beat(tmp_path)
        with alive(recorder, for_s=60, every_s=0.01):
            while last_beat(tmp_path) == before:
                time.sleep(0.01)
        with alive(recorder, for_s=0, every_s=0.01):
            silent = last_beat(tmp_path)
            time.sleep(0.1)
            assert last_beat(tmp_path) == silent
