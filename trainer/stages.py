"""Startup as a graph: named stages with what each waits for, one after the other for now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter

from ett_reports.events import Phase
from ett_reports.recorder import Recorder, Span

BEAT_S = 5.0


@dataclass(frozen=True)
class Stage:
    """One stage: its phase in the event log, the work, and the stages whose results the work uses.

    `silence_s`: how long the work may give no sign of life of its own before it counts as hung. Compiling one large
    graph takes an hour (paper IV-B) inside a single call, which is no hang.
    """

    phase: Phase
    work: Callable[[Span], None]
    after: Sequence[Phase] = ()
    silence_s: float = 0.0


def run_in_sequence(stages: Sequence[Stage], recorder: Recorder) -> None:
    """Run every stage in a span of its own, each after those it needs, else in the order given.

    In sequence a stage waits for the one before it, needed or not, and the log says so: that is what overlapping saves.

    Raises:
        ValueError: a stage needs one that is not given.
        graphlib.CycleError: stages need each other.
    """
    previous: Span | None = None
    for stage in in_order(stages):
        waits_for = [previous] if previous else []
        with recorder.span(stage.phase, waits_for=waits_for) as span, alive(recorder, for_s=stage.silence_s):
            stage.work(span)
        previous = span


@contextmanager
def alive(recorder: Recorder, *, for_s: float, every_s: float = BEAT_S) -> Iterator[None]:
    """Give signs of life beside the block, for `for_s` seconds at most: after that its silence is a hang again."""
    done = threading.Event()

    def beat() -> None:
        end = time.monotonic() + for_s
        while time.monotonic() < end and not done.wait(every_s):
            recorder.heartbeat()

    thread = threading.Thread(target=beat, name="signs-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_order(stages: Sequence[Stage]) -> list[Stage]:
    """`stages` with each after those it needs; the order given decides wherever the needs do not."""
    by_phase = {stage.phase: stage for stage in stages}
    for stage in stages:
        missing = [phase for phase in stage.after if phase not in by_phase]
        if missing:
            raise ValueError(f"stage {stage.phase} needs {', '.join(missing)}, which is not among the stages")
    TopologicalSorter({stage.phase: stage.after for stage in stages}).prepare()  # raises on a cycle
    ordered: list[Stage] = []
    left = list(stages)
    while left:
        done = {stage.phase for stage in ordered}
        ready = next(stage for stage in left if done.issuperset(stage.after))
        ordered.append(ready)
        left.remove(ready)
    return ordered
