"""Ours and ml-goodput-measurement on the same timelines: its own recorder and calculator, with a logger in memory.

    python3.11 -m venv /tmp/goodput && /tmp/goodput/bin/pip install ml-goodput-measurement==0.2.3
    /tmp/goodput/bin/python tests/benchmarks/goodput_side_by_side.py

The peer stays out of our lock, because it brings Google's cloud clients. Our side needs the standard library only.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ett_reports.events import Phase
from ett_reports.report import JobReport
from tests.ett_reports.story import EPOCH_NS, Process, Story

PEER, VERSION = "ml-goodput-measurement", "0.2.3"
INSTALL = f"python3.11 -m venv /tmp/goodput && /tmp/goodput/bin/pip install {PEER}=={VERSION}"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one program says of a timeline. Percent; parts: productive and all losses, which should sum to 100."""

    ett: float
    failures: int
    parts: float


class MemoryLogger:
    """Stands in for Cloud Logging: keeps entries in the order in which they were written."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def read_cloud_logging_entries(self, *_: object, **__: object) -> tuple[list[dict[str, Any]], tuple[Any, Any]]:
        stamps = [value for name, value in self.entries[-1].items() if name.endswith("_time")]
        return list(self.entries), (datetime.fromtimestamp(stamps[-1], UTC), "last")

    def flush(self) -> None:
        """Nothing is pending."""


class Peer:
    """Its recorder, told what a program that follows its README tells it, at the instants of the story."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.skew = 0.0

    def stamp(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(EPOCH_NS / 1e9 + seconds + self.skew, UTC)

    def begin(self, seconds: float) -> None:
        self.recorder.record_job_start_time(self.stamp(seconds))

    def step(self, number: int, seconds: float) -> None:
        self.recorder.record_step_start_time(number, self.stamp(seconds))

    def event(self, kind: str, start: float, end: float) -> None:
        self.recorder.record_custom_badput_event_start_time(self.stamp(start), kind)
        self.recorder.record_custom_badput_event_end_time(self.stamp(end), kind)

    def end(self, seconds: float) -> None:
        self.recorder.record_job_end_time(self.stamp(seconds))


class Both:
    """One timeline told to both. Seconds; a step consumes ten samples."""

    def __init__(self, folder: Path, peer: Peer | None) -> None:
        self.story = Story(folder / "events")
        self.peer = peer
        self.number = 0
        self.trainer: Process | None = None

    def attempt(self, at: float, first_step: int, loop: float | None = None, skew: float = 0, host: str = "a") -> None:
        """Launched at `at`, its loop begins at `loop` (default: at once)."""
        self.number += 1
        self.story.submit(self.number, at)
        self.trainer = self.story.trainer(self.number, at, skew=skew, host=host)
        self.step_number = first_step
        if self.peer is not None:
            self.peer.skew = skew
            self.peer.begin(at)
        if loop is not None:
            self.trainer.at(loop).begin(10 * first_step)

    @property
    def now(self) -> float:
        assert self.trainer is not None
        return self.trainer.clock.at / 1e9

    def steps(self, count: int, seconds: float = 10) -> None:
        for _ in range(count):
            self._step_start(self.now)
            assert self.trainer is not None
            self.trainer.steps(1, seconds=seconds)

    def _step_start(self, at: float) -> None:
        if self.peer is not None:
            self.peer.step(self.step_number, at)
        self.step_number += 1

    def dies(self, at: float, cause: str) -> None:
        self.story.die(self.number, at, cause)

    def completes(self) -> None:
        assert self.trainer is not None
        end = self.now
        self.trainer.finish()
        self.story.complete(self.number, end)
        if self.peer is not None:
            self.peer.end(end)


def rollback(both: Both) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(60)
    both.dies(600, "infrastructure")
    both.attempt(900, 50, loop=900)
    both.steps(50)
    both.completes()


def clean_preemption(both: Both) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(60)
    both.dies(600, "preemption")
    both.attempt(900, 60, loop=900)
    both.steps(40)
    both.completes()


def two_failed_startups(both: Both) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(50)
    both.dies(500, "infrastructure")
    for start, death in ((700, 750), (800, 850)):
        both.attempt(start, 50)
        both.dies(death, "application")
    both.attempt(900, 50, loop=1000)
    both.steps(50)
    both.completes()


def recompile(both: Both, *, told_to_peer: bool) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(30)
    both._step_start(300)
    assert both.trainer is not None
    with both.trainer.span(Phase.RECOMPILE, until=410):
        pass
    if told_to_peer and both.peer is not None:
        both.peer.event("recompile", 300, 410)
    both.trainer.steps(1)
    both.steps(29)
    both.completes()


def mid_run_recompile(both: Both) -> None:
    recompile(both, told_to_peer=False)


def mid_run_recompile_told(both: Both) -> None:
    recompile(both, told_to_peer=True)


def skewed_second_host(both: Both) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(60)
    both.dies(600, "infrastructure")
    both.attempt(700, 50, loop=700, skew=-200, host="b")
    both.steps(50)
    both.completes()


def overrunning_event(both: Both) -> None:
    both.attempt(0, 0, loop=0)
    both.steps(10)
    assert both.trainer is not None
    if both.peer is not None:
        both.peer.event("evaluation", 100, 166)
    both.trainer.at(165).begin(100)
    both._step_start(165)
    both.trainer.at(166).phase(Phase.EVALUATION, 100, 166)
    both.trainer.steps(1, seconds=9)
    both.steps(3)
    both.completes()


def second_day(both: Both) -> None:
    both.attempt(0, 0)
    assert both.trainer is not None
    both.trainer.at(10).begin(0)
    both.steps(9)
    both.completes()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A timeline, the right answer (ETT in percent, failures), and what was told before under the same job name."""

    name: str
    tell: Callable[[Both], None]
    ett: float
    failures: int
    before: Callable[[Both], None] | None = None


CASES = (
    Case(name="rollback", tell=rollback, ett=71.43, failures=1),
    Case(name="clean preemption", tell=clean_preemption, ett=76.92, failures=1),
    Case(name="two failed startups", tell=two_failed_startups, ett=66.67, failures=3),
    Case(name="mid-run recompile", tell=mid_run_recompile, ett=84.51, failures=0),
    Case(name="mid-run recompile, told as an event", tell=mid_run_recompile_told, ett=84.51, failures=0),
    Case(name="skewed second host", tell=skewed_second_host, ett=83.33, failures=1),
    Case(name="overrunning event", tell=overrunning_event, ett=67.80, failures=0),
    Case(name="name used again", tell=second_day, ett=90.00, failures=0, before=rollback),
)


def ours(case: Case) -> Figures:
    """Our recorder and reducer. Each run has a folder of its own, so what was told before is not in it."""
    with tempfile.TemporaryDirectory() as folder:
        if case.before is not None:
            case.before(Both(Path(folder) / "before", None))
        both = Both(Path(folder) / "run", None)
        case.tell(both)
        report: JobReport = both.story.report()
    assert report.ett is not None
    parts = sum(report.l2.values()) / report.wall_ns
    return Figures(ett=round(100 * report.ett, 2), failures=report.nof, parts=round(100 * parts, 2))


@contextmanager
def peer_calculator(cache: Path, tell: Callable[[Both], None]) -> Iterator[Any]:
    """Its calculator over what its recorder wrote; a new process would find the same cache folder."""
    goodput = import_module("ml_goodput_measurement.src.goodput")
    logger = MemoryLogger()
    recorder = goodput.GoodputRecorder("ranker", "log", logging_enabled=True, cloud_logger=logger)
    with tempfile.TemporaryDirectory() as folder:
        tell(Both(Path(folder), Peer(recorder)))
    yield goodput.GoodputCalculator("ranker", "log", cloud_logger=logger, cache_dir=str(cache))


def theirs(case: Case) -> Figures:
    with tempfile.TemporaryDirectory() as cache:
        if case.before is not None:
            with peer_calculator(Path(cache), case.before) as calculator:
                calculator.get_job_goodput()
        with peer_calculator(Path(cache), case.tell) as calculator:
            ett, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
            failures = calculator.get_job_goodput_details()["disruption_count"]
    losses = [v for value in badput.values() for v in (value.values() if isinstance(value, dict) else [value])]
    return Figures(ett=round(ett, 2), failures=failures, parts=round(ett + sum(losses), 2))


def table() -> str:
    rows = [f"| timeline | right | ours | {PEER} {VERSION} |", "| --- | --- | --- | --- |"]
    for case in CASES:
        cells = [f"{case.ett:.2f}%, {case.failures}", *(_cell(figures) for figures in (ours(case), theirs(case)))]
        rows.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(figures: Figures) -> str:
    return f"{figures.ett:.2f}%, {figures.failures}; parts sum to {figures.parts:g}%"


def main() -> int:
    try:
        installed = metadata.version(PEER)
    except metadata.PackageNotFoundError:
        print(f"{PEER} is not installed here. In an environment of its own: {INSTALL}", file=sys.stderr)
        return 2
    if installed != VERSION:
        print(f"{PEER} {installed} is installed; the figures in docs/metric.md are of {VERSION}", file=sys.stderr)
    print("ETT in percent, failures; parts: productive time and all losses\n")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
