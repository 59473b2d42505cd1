"""The report as a trace for ui.perfetto.dev: the job's levels, every attempt's ranks, the refresh's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ett_reports.events import COMPONENT_OF
from ett_reports.log import EventLog
from ett_reports.placement import PlacedAttempt, Steps, Trainer, place
from ett_reports.render.untrusted import printable
from ett_reports.render.words import COMPONENT, LEVEL_1, PHASE
from ett_reports.report import JobReport, RefreshReport, Segment

Event = dict[str, Any]

MOST_STEPS = 20_000
"""A rank with more steps shows them in groups: a viewer slows down far beyond this."""

_JOB, _REFRESH, _FIRST_ATTEMPT = 1, 2, 100


def render_trace(job: JobReport, refresh: RefreshReport | None, log: EventLog | None = None) -> dict[str, Any]:
    """A document in Chrome's trace event format, times in us. Without the log: the critical path, no ranks."""
    origin = job.submitted_unix_ns if refresh is None else min(job.submitted_unix_ns, refresh.queued_unix_ns)
    events = [*_levels(job, job.submitted_unix_ns - origin)]
    if refresh is not None:
        events += _tasks(refresh, refresh.queued_unix_ns - origin)
    if log is not None:
        for attempt in place(log).attempts:
            events += _attempt(attempt, origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"job": printable(job.job), "metric_version": job.metric_version, "origin_unix_ns": str(origin)},
    }


def _levels(job: JobReport, offset: int) -> Iterator[Event]:
    yield from _named(_JOB, f"Job {job.job}", {1: "Level 1", 2: "Level 2, critical path"})
    for segment in _merged(job.segments, "l1"):
        yield _slice(_JOB, 1, LEVEL_1[segment.l1], segment.start_ns + offset, segment.end_ns + offset)
    for segment in _merged(job.segments, "phase"):
        given = {
            "component": COMPONENT[segment.l2],
            "class": LEVEL_1[segment.l1],
            "attempt": segment.attempt,
            "rank": segment.rank,
            "provenance": segment.provenance.value,
        }
        yield _slice(_JOB, 2, PHASE[segment.phase], segment.start_ns + offset, segment.end_ns + offset, **given)
    for failure in job.failures:
        given = {"attempt": failure.attempt, "cause": failure.cause.value, "message": failure.message}
        name = f"failure: {failure.cause.value}"
        yield _instant(_JOB, 1, name, failure.failure_ns + offset, **given)


def _merged(segments: tuple[Segment, ...], key: str) -> Iterator[Segment]:
    """Neighbours that look the same on a track are one slice."""
    held: Segment | None = None
    keys = ("l1",) if key == "l1" else ("l1", "phase", "attempt", "rank", "provenance")
    for segment in segments:
        same = held is not None and all(getattr(held, name) == getattr(segment, name) for name in keys)
        if held is not None and same:
            held = dataclasses.replace(held, end_ns=segment.end_ns)
            continue
        if held is not None:
            yield held
        held = segment
    if held is not None:
        yield held


def _tasks(refresh: RefreshReport, offset: int) -> Iterator[Event]:
    names = {number: task.task for number, task in enumerate(refresh.tasks, start=1)}
    yield from _named(_REFRESH, "Refresh", names)
    for track, task in enumerate(refresh.tasks, start=1):
        for one in task.tries:
            end = task.end_ns if one.end_ns is None else one.end_ns
            code = end if one.code_start_ns is None else one.code_start_ns
            given = {"try": one.number, "state": one.state}
            yield _slice(_REFRESH, track, "queue", one.ready_ns + offset, code + offset, **given)
            yield _slice(_REFRESH, track, f"try {one.number}", code + offset, end + offset, **given)


def _attempt(attempt: PlacedAttempt, origin: int) -> Iterator[Event]:
    process = _FIRST_ATTEMPT + attempt.number
    tracks: dict[int, str] = {}
    events: list[Event] = []
    for trainer in sorted(attempt.trainers, key=lambda one: (one.rank is None, one.rank, one.name)):
        label = trainer.name if trainer.rank is None else f"rank {trainer.rank}"
        steps_track = len(tracks) + 1
        tracks[steps_track] = f"{label} steps"
        events += _steps(process, steps_track, trainer.steps, origin)
        events += _spans(process, trainer, label, tracks, origin)
    for stamps in attempt.stamps.values():
        for stamp in stamps:
            events.append(_instant(process, 1, stamp.fact.name, stamp.ns - origin, source=stamp.fact.source.value))
    yield from _named(process, f"Attempt {attempt.number}", tracks)
    yield from events


def _spans(process: int, trainer: Trainer, label: str, tracks: dict[int, str], origin: int) -> Iterator[Event]:
    """One track per thread; spans that cross another of their thread go to a track of their own, so that all nest."""
    ends: dict[int, list[int]] = {}
    threads: dict[str, list[int]] = {}
    for span in sorted(trainer.spans, key=lambda one: (one.start_ns, -(one.end_ns or trainer.last_life_ns))):
        end = trainer.last_life_ns if span.end_ns is None else span.end_ns
        thread = (span.thread or "main").rsplit(":", 1)[0]
        track = next((one for one in threads.get(thread, []) if _nests(ends[one], span.start_ns, end)), None)
        if track is None:
            track = len(tracks) + 1
            tracks[track] = printable(f"{label} {thread}", 80)
            threads.setdefault(thread, []).append(track)
            ends[track] = []
        ends[track].append(end)
        given = {"component": COMPONENT[COMPONENT_OF[span.phase]], "host": trainer.host, "open": span.end_ns is None}
        more = {
            f"attr.{name}": value if isinstance(value, int | float) else str(value)
            for name, value in span.attrs.items()
        }
        yield _slice(process, track, PHASE[span.phase], span.start_ns - origin, end - origin, **given, **more)


def _nests(open_ends: list[int], start: int, end: int) -> bool:
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or end <= open_ends[-1]


def _steps(process: int, track: int, steps: Steps, origin: int) -> Iterator[Event]:
    group = -(-len(steps) // MOST_STEPS) or 1
    for first in range(0, len(steps), group):
        last = min(first + group, len(steps)) - 1
        name = f"step {first}" if first == last else f"steps {first} to {last}"
        given = {"samples": steps.after[last] - steps.before[first], "cursor": steps.after[last]}
        given["data_wait_us"] = sum(steps.wait[first : last + 1]) // 1000
        yield _slice(process, track, name, steps.start[first] - origin, steps.end[last] - origin, **given)


def _named(process: int, name: str, tracks: dict[int, str]) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": printable(name)}}
    yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    for track, label in tracks.items():
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_name", "args": {"name": printable(label)}}
        yield {"ph": "M", "pid": process, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _slice(process: int, track: int, name: str, start: int, end: int, **given: Any) -> Event:
    event = {"ph": "X", "pid": process, "tid": track, "name": printable(name), "ts": start / 1000}
    return {**event, "dur": max(0, end - start) / 1000, "args": _arguments(given)}


def _instant(process: int, track: int, name: str, at: int, **given: Any) -> Event:
    event = {"ph": "i", "s": "p", "pid": process, "tid": track, "name": printable(name), "ts": at / 1000}
    return {**event, "args": _arguments(given)}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {
        printable(name): printable(value) if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None and value == value and value not in (float("inf"), float("-inf"))
    }
