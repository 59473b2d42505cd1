"""Startup as a graph: named stages with what each waits for, run one after the other or, where they may, together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from ett_reports.events import Phase
from ett_reports.recorder import Recorder, Span
from trainer.watchdog import Watchdog


class StageError(Exception):
    """A stage of startup failed, which ends startup.

    Attributes:
        stage: its name.
        error: what it raised, also the cause of this error.
    """

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(f"startup stage {stage}: {type(error).__name__}: {error}")
        self.stage, self.error = stage, error


@dataclass(frozen=True)
class Stage:
    """One stage: its phase in the event log, the work, and the stages whose results the work uses.

    `silence_s`: how long the work may give no sign of life of its own before it counts as hung. Compiling one large
    graph takes an hour (paper IV-B) inside a single call, which is no hang.
    `part`: tells stages of one phase apart.
    """

    phase: Phase
    work: Callable[[Span], None]
    after: Sequence[str] = ()
    silence_s: float = 0.0
    part: str = ""

    @property
    def name(self) -> str:
        return f"{self.phase}.{self.part}" if self.part else str(self.phase)


def run_in_sequence(stages: Sequence[Stage], recorder: Recorder, watchdog: Watchdog) -> None:
    """Run every stage in a span of its own, each after those it needs, else in the order given, and watched.

    In sequence a stage waits for the one before it, needed or not, and the log says so: that is what overlapping saves.

    Raises:
        ValueError: a stage needs one that is not given.
        graphlib.CycleError: stages need each other.
        StageError: a stage failed; none after it has run.
    """
    previous: Span | None = None
    for stage in in_order(stages):
        watchdog.entered(stage.phase, stage.silence_s)
        previous = _run(stage, recorder, [previous] if previous else [])


def run_overlapped(
    stages: Sequence[Stage],
    recorder: Recorder,
    watchdog: Watchdog,
    *,
    enter_thread: Callable[[], None] = lambda: None,
) -> None:
    """Run every stage as soon as those it needs have ended, on a thread of its own (paper IV-A2, IV-A3).

    Args:
        enter_thread: called on a stage's thread before its work, and on the caller's at the end, for what a thread does
            not inherit.

    Raises:
        ValueError, graphlib.CycleError: as `run_in_sequence`.
        StageError: the first stage that failed. No other is started; one that is running is left behind, since it may
            be waiting for a rank that has failed as well. The caller is expected to end the process.
    """
    waiting = in_order(stages)
    spans: dict[str, Span] = {}
    ended: queue.SimpleQueue[tuple[Stage, Span | StageError]] = queue.SimpleQueue()

    def run(stage: Stage, needs: list[Span]) -> None:
        try:
            with watchdog.watching(stage.phase, stage.silence_s):
                result: Span | StageError = _run(stage, recorder, needs, enter_thread)
        except StageError as error:
            result = error
        ended.put((stage, result))

    while len(spans) < len(stages):
        for stage in [stage for stage in waiting if spans.keys() >= set(stage.after)]:
            waiting.remove(stage)
            needs = [spans[name] for name in stage.after]
            threading.Thread(target=run, args=(stage, needs), name=stage.name, daemon=True).start()
        stage, result = ended.get()
        if isinstance(result, StageError):
            raise result
        spans[stage.name] = result
    enter_thread()


def in_order(stages: Sequence[Stage]) -> list[Stage]:
    """`stages` with each after those it needs; the order given decides wherever the needs do not."""
    by_name = {stage.name: stage for stage in stages}
    for stage in stages:
        missing = [name for name in stage.after if name not in by_name]
        if missing:
            raise ValueError(f"stage {stage.name} needs {', '.join(missing)}, which is not among the stages")
    TopologicalSorter({stage.name: stage.after for stage in stages}).prepare()  # raises on a cycle
    ordered: list[Stage] = []
    left = list(stages)
    while left:
        done = {stage.name for stage in ordered}
        ready = next(stage for stage in left if done.issuperset(stage.after))
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _run(
    stage: Stage, recorder: Recorder, waits_for: list[Span], enter_thread: Callable[[], None] = lambda: None
) -> Span:
    part = {"part": stage.part} if stage.part else {}
    try:
        with recorder.span(stage.phase, waits_for=waits_for, **part) as span:
            enter_thread()
            stage.work(span)
    except Exception as error:
        raise StageError(stage.name, error) from error
    return span
