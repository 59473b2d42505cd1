"""What reducing costs: 10 attempts x 64 ranks x 1,000 events, and how it grows with events, attempts and ranks.

    python tests/benchmarks/reduce_cost.py [--attempts 10] [--ranks 64] [--events 1000] [--repeats 3]

Logs are written by the real recorder under a set clock. Reading and reducing are timed in process CPU time, sizes
interleaved. The exponent is the slope of log cost over log events with its 95% interval: 1 is linear. Exit code 1 if
the interval lies above 1.1.
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ett_reports.confidence import t_quantile
from ett_reports.events import Phase
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from tests.ett_reports.story import SECOND, Story

STEEPEST = 1.1
STARTUP = (Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.PREPROCESSING, Phase.TRAIN_MODULE, Phase.COMPILE)


@dataclass(kw_only=True)
class Size:
    """One log, and what it cost in each repeat (CPU seconds)."""

    attempts: int
    ranks: int
    folder: Path
    events: int = 0
    read_s: list[float] = field(default_factory=list)
    reduce_s: list[float] = field(default_factory=list)

    @property
    def cost_s(self) -> float:
        return statistics.median(read + reduced for read, reduced in zip(self.read_s, self.reduce_s, strict=True))


def write(folder: Path, attempts: int, ranks: int, events: int) -> None:
    """A job whose every attempt but the last dies. Of a rank's events half are windows of five steps, half are saves
    that block the loop (a line when one opens, one when it ends)."""
    story, at, cursor = Story(folder), 0.0, 0
    for attempt in range(1, attempts + 1):
        story.submit(attempt, at, devices=ranks)
        for rank in range(ranks):
            trainer = story.trainer(attempt, at, rank=rank, world_size=ranks, host=f"node-{rank // 8}")
            for number, phase in enumerate(STARTUP):
                with trainer.span(phase, until=at + number + 1):
                    pass
            trainer.begin(cursor)
            for _ in range((events - 2 * len(STARTUP) - 3) // 4):
                trainer.steps(10, seconds=0.2, wait=0.001 * (rank % 3))
                with trainer.span(Phase.CHECKPOINT_BLOCKING, until=trainer.clock.at / SECOND + 0.1):
                    pass
            trainer.recorder.close()
            end, reached = trainer.clock.at / SECOND, trainer.cursor
        cursor = reached - 20
        if attempt < attempts:
            story.die(attempt, end, "infrastructure")
            at = end + 30
    story.complete(attempts, end)


def time_one(size: Size) -> None:
    begin = time.process_time()
    log = read_log(size.folder)
    middle = time.process_time()
    report = reduce(log)
    size.reduce_s.append(time.process_time() - middle)
    size.read_s.append(middle - begin)
    size.events = log.quality.events
    assert sum(report.l2.values()) == report.wall_ns and report.nof == size.attempts - 1


def exponent(sizes: list[Size]) -> tuple[float, float]:
    """Slope of log cost over log events, least squares, and the half-width of its 95% interval."""
    points = [
        (math.log(size.events), math.log(read + reduced))
        for size in sizes
        for read, reduced in zip(size.read_s, size.reduce_s, strict=True)
    ]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    freedom = len(points) - 2
    return slope, t_quantile(0.975, freedom) * math.sqrt(rest / freedom / spread)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("attempts", 10), ("ranks", 64), ("events", 1000), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = (given.attempts, given.ranks, given.events)
        series = {
            "events of a rank": [(given.attempts, given.ranks, given.events // part) for part in (8, 4, 2, 1)],
            "attempts": [(max(1, given.attempts // part), given.ranks, given.events) for part in (10, 5, 2, 1)],
            "ranks": [(given.attempts, max(1, given.ranks // part), given.events) for part in (8, 4, 2, 1)],
        }
        sizes = {}
        for shape in sorted({shape for shapes in series.values() for shape in shapes}):
            sizes[shape] = Size(attempts=shape[0], ranks=shape[1], folder=Path(folder) / "-".join(map(str, shape)))
            write(sizes[shape].folder, *shape)
        for _ in range(given.repeats):
            for size in sizes.values():
                time_one(size)
    return _print(series, sizes, whole, given.repeats)


def _print(
    series: dict[str, list[tuple[int, int, int]]], sizes: dict[tuple[int, int, int], Size], whole: tuple[int, int, int],
    repeats: int,
) -> int:  # fmt: skip
    size = sizes[whole]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{repeats} repeats, Python {platform.python_version()}, CPU time, medians")
    print(
        f"{whole[0]} attempts x {whole[1]} ranks x {whole[2]} events: {size.events:,} events in {size.cost_s:.1f} s "
        f"(read {statistics.median(size.read_s):.1f} s, reduce {statistics.median(size.reduce_s):.1f} s), "
        f"{1e6 * size.cost_s / size.events:.1f} us an event, peak memory {peak:,.0f} MiB\n"
    )
    print("| grown in | events | CPU seconds | exponent (95%) |\n| --- | --- | --- | --- |")
    steepest = 0.0
    for name, shapes in series.items():
        grown = [sizes[shape] for shape in shapes]
        slope, margin = exponent(grown)
        steepest = max(steepest, slope - margin)
        counts = ", ".join(f"{one.events:,}" for one in grown)
        costs = ", ".join(f"{one.cost_s:.2f}" for one in grown)
        print(f"| {name} | {counts} | {costs} | {slope:.3f} ({slope - margin:.3f} to {slope + margin:.3f}) |")
    return 0 if steepest <= STEEPEST else 1


if __name__ == "__main__":
    sys.exit(main())
