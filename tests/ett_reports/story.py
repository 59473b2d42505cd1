"""Event logs told as stories: a real recorder under a clock that the test sets, in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder, Span
from ett_reports.report import JobReport

EPOCH_NS = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def ns(seconds: float) -> int:
    return round(seconds * 1000) * 1_000_000


class StoryClock:
    """Stands still until it is set. skew: how far its wall clock is ahead, seconds."""

    def __init__(self, uptime: float, skew: float = 0.0) -> None:
        self.at = 0
        self.uptime = ns(uptime)
        self.skew = ns(skew)

    def mono_ns(self) -> int:
        return self.at + self.uptime

    def wall_ns(self) -> int:
        return EPOCH_NS + self.at + self.skew


class Process:
    """One process of a story. `at` moves its clock; nothing else does."""

    def __init__(self, folder: Path, identity: ProcessIdentity, start: float, skew: float, host: str) -> None:
        self.clock = StoryClock(uptime=1000 + 7 * len(identity.process), skew=skew)
        self.clock.at = ns(start)
        self.recorder = Recorder(folder, identity, clock=self.clock, host=host)
        self.cursor = 0

    def at(self, seconds: float) -> Process:
        assert ns(seconds) >= self.clock.at, f"{seconds} lies in the past"
        self.clock.at = ns(seconds)
        return self

    def point(self, name: str, **attrs: Any) -> Process:
        self.recorder.point(name, **attrs)
        return self

    @contextmanager
    def span(self, phase: Phase, until: float, **attrs: Any) -> Iterator[Span]:
        with self.recorder.span(phase, **attrs) as span:
            yield span
            self.at(until)

    def phase(self, phase: Phase, start: float, end: float, **attrs: Any) -> Span:
        """A span told afterwards."""
        base = self.clock.uptime
        return self.recorder.record_span(phase, ns(start) + base, ns(end) + base, **attrs)

    def leave_open(self, phase: Phase) -> Process:
        """A span that never ends: the process dies in it."""
        self.recorder.span(phase).__enter__()
        return self

    def begin(self, cursor: int | None = None) -> Process:
        if cursor is not None:
            self.cursor = cursor
        self.recorder.begin_steps(cursor=cursor)
        return self

    def steps(self, count: int, seconds: float = 10, samples: int = 10, wait: float = 0) -> Process:
        for _ in range(count):
            self.clock.at += ns(seconds)
            self.cursor += samples
            self.recorder.step(cursor=self.cursor, data_wait_ns=ns(wait))
        return self

    def finish(self) -> None:
        self.recorder.point("completed", cursor=self.cursor)
        self.recorder.close()


class Story:
    """A job's log under a folder."""

    def __init__(self, folder: Path, job: str = "shop/run-1") -> None:
        self.folder = folder
        self.job = job
        self.launcher = self.process(Source.LAUNCHER, "launcher", host="head")

    def process(self, source: Source, name: str, start: float = 0, skew: float = 0, host: str = "node-a",
                **identity: Any) -> Process:  # fmt: skip
        given = ProcessIdentity(job=self.job, source=source, process=name, **identity)
        return Process(self.folder, given, start, skew, host)

    def trainer(self, attempt: int, start: float, rank: int = 0, world_size: int = 1, skew: float = 0,
                host: str = "node-a") -> Process:  # fmt: skip
        name = f"trainer-a{attempt}-r{rank}"
        return self.process(Source.TRAINER, name, start, skew, host, attempt=attempt, rank=rank,
                            world_size=world_size, devices=1)  # fmt: skip

    def submit(self, attempt: int, at: float, devices: int = 1) -> None:
        """Submitted, allocated and launched in one instant."""
        self.launcher.at(at).point("submitted", attempt=attempt, devices=devices)
        self.launcher.point("allocated", attempt=attempt, devices=devices).point("launched", attempt=attempt)

    def die(self, attempt: int, at: float, cause: str, released: float | None = None) -> None:
        """Failure, detection and release, by default in one instant."""
        self.launcher.at(at).point("failure", attempt=attempt, cause=cause, exit_code=1, message="it died")
        self.launcher.point("detected", attempt=attempt, cause=cause)
        self.launcher.at(at if released is None else released)
        self.launcher.point("released", attempt=attempt, outcome="failed", cause=cause, exit_codes=[1])

    def complete(self, attempt: int, at: float) -> None:
        self.launcher.at(at).point("released", attempt=attempt, outcome="completed", exit_codes=[0])

    def report(self, now: float | None = None) -> JobReport:
        report = reduce(read_log(self.folder), None if now is None else EPOCH_NS + ns(now))
        check_sums(report)
        return report


def check_sums(report: JobReport) -> None:
    """Whatever the log: margins, segments and provenance sum to wall time, and nothing is negative."""
    cells = [value for row in report.cross.values() for value in row.values()]
    assert all(value >= 0 for value in cells)
    assert sum(cells) == sum(report.l1.values()) == sum(report.l2.values()) == report.wall_ns
    assert {level: sum(row.values()) for level, row in report.cross.items()} == report.l1
    assert sum(report.provenance.values()) == report.wall_ns
    assert sum(total.exposed_ns for total in report.phases) == report.wall_ns
    at = 0
    for segment in report.segments:
        assert segment.start_ns == at and segment.end_ns > at
        at = segment.end_ns
    assert at == report.wall_ns
    for failure in report.failures:
        assert failure.lost_ns >= 0 and failure.detect_ns >= 0 and failure.ttr_ns >= 0
        assert failure.lost_ns + failure.detect_ns + failure.ttr_ns == failure.recovery_ns
    assert sum(failure.recovery_ns for failure in report.failures) == report.l1["recovery"]  # type: ignore[index]
    assert 0 <= report.productive_held_ns <= report.held_ns <= report.wall_ns
    assert all(total.busy_ns >= total.exposed_ns >= 0 for total in report.phases)
    left_out = report.complement.in_loop_ns + report.complement.shutdown_ns + report.complement.lost_ns
    left_out += report.complement.detect_ns
    if report.wall_ns:
        assert report.complement.value is not None and report.ett_exact is not None
        assert report.complement.value - report.ett_exact == left_out / report.wall_ns or (
            (report.complement.value - report.ett_exact) * report.wall_ns == left_out
        )
