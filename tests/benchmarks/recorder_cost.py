"""What recording a step costs the loop: ours beside ml-goodput-measurement's `record_step_start_time`, interleaved.

    python tests/benchmarks/recorder_cost.py [--steps 20000] [--repeats 30]

Ours is the whole of `Recorder.step` on a real file system: flight recorder, windows, lines. Of the peer there is
"in memory" (its recorder with a list as its logger: the least it can cost) and "queued" (through `logging` into a
queue, as its cloud logger does, without the sending). Install the peer as goodput_side_by_side.py says; without it
only ours is measured. Cost is process CPU time over a bare loop's; the ratio is taken per repeat, so that the
machine's load is in both of its terms. Exit code 1 if a step of ours costs more than 10 us.
"""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import platform
import queue
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ett_reports.confidence import Estimate, mean_of
from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder

GOAL_NS = 10_000
PEER = "ml-goodput-measurement"
BARE, OURS, IN_MEMORY, QUEUED = "bare loop", "ours", f"{PEER}, in memory", f"{PEER}, queued"

Way = Callable[[int], None]
"""Runs that many steps."""


class ListLogger:
    """The least that the peer's logger can do: keep the entry."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)


class QueueLogger:
    """What the peer's cloud logger does in the caller's thread: a `logging` record into a queue."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()
        self.logger = logging.getLogger("recorder_cost")
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False
        self.logger.addHandler(_Enqueue(self.queue))

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.logger.info(entry)


class _Enqueue(logging.Handler):
    def __init__(self, target: queue.Queue[Any]) -> None:
        super().__init__()
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        self.target.put_nowait(record)


def bare(steps: int) -> None:
    cursor = 0
    for _ in range(steps):
        cursor += 512


def ours(folder: Path) -> Way:
    identity = ProcessIdentity(job="benchmark/run", source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0)
    recorder = Recorder(folder, identity)
    recorder.begin_steps(cursor=0)
    reached = 0

    def record(steps: int) -> None:
        nonlocal reached
        cursor, step = reached, recorder.step
        for number in range(steps):
            cursor += 512
            step(cursor=cursor, data_wait_ns=number)
        reached = cursor

    return record


def peer(logger: ListLogger | QueueLogger) -> Way:
    goodput = import_module("ml_goodput_measurement.src.goodput")
    recorder = goodput.GoodputRecorder("benchmark", "log", logging_enabled=True, cloud_logger=logger)

    def record(steps: int) -> None:
        cursor, step = 0, recorder.record_step_start_time
        for number in range(steps):
            cursor += 512
            step(number)

    return record


def measure(ways: dict[str, Way], steps: int, repeats: int) -> dict[str, list[float]]:
    """CPU nanoseconds per step of every way in every repeat; the order rotates, the first repeat is not counted."""
    costs: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for repeat in range(repeats + 1):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            begin = time.process_time_ns()
            ways[name](steps)
            spent = (time.process_time_ns() - begin) / steps
            if repeat:
                costs[name].append(spent)
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Way] = {BARE: bare, OURS: ours(Path(folder))}
        try:
            told = f", {PEER} {metadata.version(PEER)}"
            ways |= {IN_MEMORY: peer(ListLogger()), QUEUED: peer(QueueLogger())}
        except metadata.PackageNotFoundError:
            told = f"; {PEER} is not installed, see goodput_side_by_side.py"
        costs = measure(ways, arguments.steps, arguments.repeats)
    print(f"{arguments.repeats} repeats of {arguments.steps} steps, Python {platform.python_version()}{told}\n")
    net = {name: [a - b for a, b in zip(costs[name], costs[BARE], strict=True)] for name in ways if name != BARE}
    print("| recorder | CPU per step, over a bare loop's | ours / this |\n| --- | --- | --- |")
    for name, values in net.items():
        ratio = mean_of([one / other for one, other in zip(net[OURS], values, strict=True)])
        print(f"| {name} | {_told(mean_of([value / 1000 for value in values]))} us | {_told(ratio)} |")
    return 0 if mean_of(net[OURS]).mean <= GOAL_NS else 1


def _told(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f" ({estimate.low:.2f} to {estimate.high:.2f})"
    return f"{estimate.mean:.2f}{interval}"


if __name__ == "__main__":
    sys.exit(main())
