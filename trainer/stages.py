"""Startup as a graph: named stages with what each waits for, one after the other for now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from ett_reports.events import Phase
from ett_reports.recorder import Recorder, Span
from trainer.watchdog import Watchdog


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


def run_in_sequence(stages: Sequence[Stage], recorder: Recorder, watchdog: Watchdog) -> None:
    """Run every stage in a span of its own, each after those it needs, else in the order given, and watched.

    In sequence a stage waits for the one before it, needed or not, and the log says so: that is what overlapping saves.

    Raises:
        ValueError: a stage needs one that is not given.
        graphlib.CycleError: stages need each other.
    """
    previous: Span | None = None
    for stage in in_order(stages):
        waits_for = [previous] if previous else []
        watchdog.entered(stage.phase, stage.silence_s)
        with recorder.span(stage.phase, waits_for=waits_for) as span:
            stage.work(span)
        previous = span


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
