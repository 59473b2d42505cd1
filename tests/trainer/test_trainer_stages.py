"""Startup's graph: order by need, one span a stage, and mistakes in the graph."""

from __future__ import annotations

import threading
from graphlib import CycleError
from pathlib import Path

import pytest

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from trainer.stages import Stage, StageError, in_order, run_in_sequence, run_overlapped
from trainer.watchdog import HangLimits, Watchdog

FIRST, SECOND, THIRD = Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.TRAIN_MODULE


def stage(phase: Phase, *after: Phase) -> Stage:
    return Stage(phase, lambda span: None, after=after)


def identity() -> ProcessIdentity:
    return ProcessIdentity(job="a/b", source=Source.TRAINER, process="p", attempt=1, rank=0)


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
    ran: list[Phase] = []
    stages = [Stage(phase, lambda span, phase=phase: ran.append(phase)) for phase in (FIRST, SECOND, THIRD)]
    with Recorder(tmp_path, identity()) as recorder:
        run_in_sequence(stages, recorder, watchdog(recorder))
    (process,) = read_log(tmp_path).processes
    assert [span.phase for span in process.spans] == ran == [FIRST, SECOND, THIRD]
    assert [span.waits_for for span in process.spans] == [(), ("p#1",), ("p#2",)]


def test_a_stage_that_fails_ends_startup_and_its_span_says_so(tmp_path: Path):
    def fail(span: object) -> None:
        raise OSError("no device")

    with Recorder(tmp_path, identity()) as recorder, pytest.raises(StageError) as caught:
        run_in_sequence([Stage(FIRST, fail), stage(SECOND)], recorder, watchdog(recorder))
    assert str(caught.value) == "startup stage device_init: OSError: no device"
    assert caught.value.stage == FIRST and isinstance(caught.value.error, OSError)
    (process,) = read_log(tmp_path).processes
    assert [(span.phase, span.failed) for span in process.spans] == [(FIRST, True)]


def test_every_stage_is_watched_for_as_long_as_it_asks(tmp_path: Path):
    with Recorder(tmp_path, identity()) as recorder:
        watched = watchdog(recorder)
        seen: list[Phase] = []
        stages = [
            Stage(phase, lambda span: seen.append(watched.phase), silence_s=silence_s)
            for phase, silence_s in ((FIRST, 0.0), (SECOND, 60.0))
        ]
        run_in_sequence(stages, recorder, watched)
    assert seen == [FIRST, SECOND]


def test_stages_that_do_not_need_each_other_run_at_the_same_time(tmp_path: Path):
    """Each waits for the other to have begun: in sequence neither would ever end."""
    met = threading.Barrier(2)

    def meet(span: object) -> None:
        met.wait(60)

    stages = [Stage(FIRST, meet), Stage(SECOND, meet), stage(THIRD, FIRST, SECOND)]
    with Recorder(tmp_path, identity()) as recorder:
        run_overlapped(stages, recorder, watchdog(recorder))
    (process,) = read_log(tmp_path).processes
    spans = {span.phase: span for span in process.spans}
    assert max(spans[FIRST].start_ns, spans[SECOND].start_ns) < min(spans[FIRST].end_ns, spans[SECOND].end_ns)
    assert spans[FIRST].thread != spans[SECOND].thread
    assert spans[FIRST].waits_for == spans[SECOND].waits_for == ()
    assert set(spans[THIRD].waits_for) == {f"p#{spans[FIRST].id}", f"p#{spans[SECOND].id}"}
    assert spans[THIRD].start_ns >= max(spans[FIRST].end_ns, spans[SECOND].end_ns)


def test_a_stage_that_fails_beside_others_ends_startup_at_once_and_nothing_else_is_started(tmp_path: Path):
    """The other stage never ends, as where it waits for a rank that failed as well."""
    begun, never = threading.Event(), threading.Event()
    after: list[Phase] = []

    def wait_for_ever(span: object) -> None:
        begun.set()
        never.wait()

    def fail(span: object) -> None:
        begun.wait(60)
        raise OSError("no data")

    stages = [
        Stage(FIRST, wait_for_ever),
        Stage(SECOND, fail),
        Stage(THIRD, lambda span: after.append(THIRD), after=[SECOND]),
    ]
    with Recorder(tmp_path, identity()) as recorder, pytest.raises(StageError, match="process_group: OSError: no"):
        run_overlapped(stages, recorder, watchdog(recorder))
    never.set()
    assert not after
    (process,) = read_log(tmp_path).processes
    assert {span.phase for span in process.spans if span.failed} >= {SECOND}


def test_what_a_thread_does_not_inherit_is_set_on_every_one_and_at_the_end_on_the_callers(tmp_path: Path):
    entered: list[str] = []
    with Recorder(tmp_path, identity()) as recorder:
        run_overlapped(
            [stage(FIRST), stage(SECOND, FIRST)],
            recorder,
            watchdog(recorder),
            enter_thread=lambda: entered.append(threading.current_thread().name),
        )
    assert entered == ["device_init", "process_group", threading.current_thread().name]


def test_two_parts_of_one_phase_are_two_stages(tmp_path: Path):
    model = Stage(THIRD, lambda span: None, part="model")
    stages = [stage(THIRD, model.name), model]
    assert [found.name for found in in_order(stages)] == ["train_module.model", "train_module"]
    with Recorder(tmp_path, identity()) as recorder:
        run_overlapped(stages, recorder, watchdog(recorder))
    (process,) = read_log(tmp_path).processes
    assert [dict(span.attrs).get("part") for span in process.spans] == ["model", None]
