"""How a training job does while it runs: samples and ETT% so far. `python -m ett_airflow.live_figure RUN_FOLDER`.

The triggerer follows many jobs on one event loop; reducing a log is Python at work. So it is done in a process of its
own, which a time limit ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PACE_S = 15.0
_LIMIT_S = 60.0
_REST = 20.0
"""A figure that took long is asked for less often: a job's log grows all day."""


@dataclass(frozen=True, kw_only=True)
class LiveFigure:
    """One look. `cursor`: new samples trained; `ett`: None before any time has passed; `attempt`: None before one."""

    attempt: int | None
    stepping: bool
    cursor: int
    planned: int | None
    ett: float | None
    wall_s: float
    nof: int

    def line(self, per_second: float | None = None) -> str:
        """For people, in the task's log."""
        share = f" ({100 * self.cursor / self.planned:.0f}%)" if self.planned else ""
        of = f" of {self.planned:,}" if self.planned else ""
        rate = f", {per_second:,.0f}/s" if per_second else ""
        samples = f"{self.cursor:,}{of} samples{share}{rate}"
        doing = samples if self.stepping else f"no step yet, {samples} before it"
        ett = "n/a" if self.ett is None else f"{100 * self.ett:.1f}%"
        failures = f", {self.nof} failures" if self.nof else ""
        return f"attempt {self.attempt}: {doing}; ETT so far {ett} of {self.wall_s:,.0f} s{failures}"


def live_figure(run_folder: Path) -> LiveFigure | None:
    """Reduce the run's event log as it is now; None while there is nothing to say."""
    from ett_reports.levels import reduce
    from ett_reports.reader import LogError, read_log
    from ett_reports.timeline import TimelineError

    try:
        report = reduce(read_log(run_folder / "events"), now_ns=time.time_ns())
    except (LogError, TimelineError):
        return None
    newest = max(report.attempts, key=lambda attempt: attempt.number, default=None)
    return LiveFigure(
        attempt=newest.number if newest else None,
        stepping=bool(newest and newest.first_step_ns is not None),
        cursor=report.high_water_mark or 0,
        planned=report.planned_samples,
        ett=report.ett,
        wall_s=report.wall_ns / 1e9,
        nof=report.nof,
    )


class LiveFigures:
    """The figures of one job, from a triggerer: `look` gives a line when one is due, and never waits for it."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._due = time.monotonic() + PACE_S
        self._working: asyncio.Task[LiveFigure | None] | None = None
        self._before: tuple[float, LiveFigure] | None = None

    def look(self) -> str | None:
        """The line of a figure that is ready; starts the next one when its time has come."""
        if self._working is None:
            if time.monotonic() >= self._due:
                self._working = asyncio.create_task(_measured(self._run_folder))
                self._began = time.monotonic()
            return None
        if not self._working.done():
            return None
        figure, self._working = self._working.result(), None
        now = time.monotonic()
        self._due = now + max(PACE_S, _REST * (now - self._began))
        if figure is None:
            return None
        rate = self._rate(now, figure)
        self._before = (now, figure)
        return figure.line(rate)

    async def stop(self) -> None:
        """End a figure that is being made."""
        if self._working is not None:
            self._working.cancel()
            with suppress(asyncio.CancelledError):
                await self._working

    def _rate(self, now: float, figure: LiveFigure) -> float | None:
        if self._before is None or figure.cursor <= self._before[1].cursor:
            return None
        return (figure.cursor - self._before[1].cursor) / (now - self._before[0])


async def _measured(run_folder: Path) -> LiveFigure | None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ett_airflow.live_figure",
        str(run_folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        return LiveFigure(**_mapping(output))
    except (TimeoutError, ValueError, TypeError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _mapping(output: bytes) -> Mapping[str, Any]:
    found = json.loads(output)
    if not isinstance(found, dict):
        raise ValueError("no figure")
    return found


def main(arguments: list[str]) -> int:
    """Prints one line of JSON, `null` while there is nothing to say."""
    os.nice(10)
    figure = live_figure(Path(arguments[0]))
    print(json.dumps(figure and asdict(figure)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
