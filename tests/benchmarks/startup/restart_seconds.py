"""Seconds from submitting the next attempt of a killed job to its trainer's first line and to its first step.

    python tests/benchmarks/startup/restart_seconds.py [--restarts 5] [--ranks 2] [--output FILE]

Both arms run whole attempts under the local launcher: `cold`, where every rank is a new interpreter, and `warm`, where
a standby forks them. They take turns; the first attempt of each compiles and is not counted. A rank is killed as soon
as the loop has begun and something is saved. Prints one JSON object a line for each restart, then the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ett_reports.flight_recorder import FILE_NAME, read_flight
from ett_reports.log import ProcessLog
from ett_reports.reader import read_log
from tests.small_refresh import small_spec
from trainer.checkpoint import newest_complete
from trainer.dpp.scan import unchecked_plan
from trainer.dpp.sources.generated import Generator
from trainer.launch import JobHandle, JobKey, JobRequest
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder
from trainer.spec import RunInfo, RunSpec, Window, dump_run_spec

FIRST_DAY, DAYS, ROWS_PER_DAY = date(2026, 3, 2), 6, 100_000
STANDBY_IDLE_S = 900.0
PATIENCE_S = 600.0


@dataclass
class Arm:
    """One run, restarted over and over."""

    name: str
    folder: RunFolder
    ranks: int
    standby_idle_s: float | None
    attempt: int = 0

    def restart(self) -> dict[str, Any]:
        """Run the next attempt until it trains, then kill it; what its log says of its start."""
        self.attempt += 1
        key = JobKey(refresh=self.folder.refresh, run=self.folder.run, task="train", attempt=self.attempt)
        load, submitted_ns = os.getloadavg()[0], time.monotonic_ns()
        handle = LocalLauncher().submit(
            JobRequest(
                key=key,
                command=("trainer",),
                run_folder=self.folder,
                replicas=self.ranks,
                devices=self.ranks,
                standby_idle_s=self.standby_idle_s,
            )
        )
        flight = JobFolder.of(handle.id).events_dir / f"trainer-a{self.attempt}-r0" / FILE_NAME
        checkpoints = self.folder.checkpoints_dir
        self._until(handle, "a step", lambda: (state := read_flight(flight)) is not None and state.cursor)
        self._until(handle, "a checkpoint", lambda: newest_complete(checkpoints))
        os.kill(LocalLauncher().describe(handle).ranks[-1].pid, signal.SIGKILL)
        while not LocalLauncher().describe(handle).terminal:
            time.sleep(0.05)
        return {"arm": self.name, "attempt": self.attempt, "load": round(load, 2), **self._told(submitted_ns)}

    def _until(self, handle: JobHandle, what: str, found: Callable[[], object]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not found():
            status = LocalLauncher().describe(handle)
            if status.terminal or time.monotonic() > give_up:
                lines = "\n".join(LocalLauncher().logs(handle, last=20))
                raise SystemExit(f"{self.name}, attempt {self.attempt}: {status.state} before {what}\n{lines}")
            time.sleep(0.02)

    def _told(self, submitted_ns: int) -> dict[str, Any]:
        log = [p for p in read_log(self.folder.events_dir).processes if p.identity.attempt == self.attempt]
        (trainer,) = [process for process in log if process.identity.rank == 0]
        launched = next(point for process in log for point in process.points if point.name == "launched")
        spans = sorted(trainer.spans, key=lambda span: span.start_ns)
        since = {
            "first_line_s": trainer.start_ns,
            "device_init_s": next(span.start_ns for span in spans if span.phase == "device_init"),
            "first_step_s": _first_step(trainer),
        }
        seconds = {name: round((at - submitted_ns) / 1e9, 3) for name, at in since.items()}
        return {"start": launched.attrs["start"], "why": launched.attrs["why"], **seconds}


def _first_step(trainer: ProcessLog) -> int:
    return min(window.end_ns[0] for window in trainer.windows if window.end_ns)


def prepare(home: Path, ranks: int) -> list[Arm]:
    """A run for each arm, of one refresh on one set of generated days."""
    os.environ["ETT_HOME"] = str(home)
    os.environ["PYTHONWARNINGS"] = "ignore"
    spec = small_spec(checkpoint={"interval_s": 0.5, "keep": 2}, resources={"ranks": ranks, "device": "cpu"})
    landed = home / "landed"
    Generator(spec.contract, rows_per_day=ROWS_PER_DAY, seed=5).land(landed, FIRST_DAY + timedelta(days=DAYS - 1), DAYS)
    window = Window(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=DAYS - 1))
    plan = unchecked_plan(spec, landed, window)
    arms = []
    for name, idle_s in (("cold", None), ("warm", STANDBY_IDLE_S)):
        folder = RunFolder.of(spec.name, name).create()
        plan.dump(folder.plan_path)
        dump_run_spec(RunSpec(refresh=spec, run=RunInfo(run=name, window=window, warm_start=None)), folder.spec_path)
        arms.append(Arm(name, folder, ranks, idle_s))
    return arms


def main(arguments: list[str] | None = None) -> int:
    """Exit 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restarts", type=int, default=5, help="of each arm, without its first attempt")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", type=Path, help="append the lines to this file as well")
    chosen = parser.parse_args(arguments)
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as home:
        try:
            arms = prepare(Path(home), chosen.ranks)
            for _ in range(chosen.restarts + 1):
                told += [_tell(arm.restart(), chosen.output) for arm in arms]
        finally:
            terminal(["cancel", "--all"])
    counted = [line for line in told if line["attempt"] > 1]
    for name in ("first_line_s", "device_init_s", "first_step_s"):
        medians = {arm: statistics.median(x[name] for x in counted if x["arm"] == arm) for arm in ("cold", "warm")}
        print(json.dumps({"median": name, **medians, "ratio": round(medians["warm"] / medians["cold"], 3)}))
    return 0


def _tell(line: dict[str, Any], output: Path | None) -> dict[str, Any]:
    text = json.dumps(line)
    print(text, flush=True)
    if output is not None:
        with output.open("a") as file:
            file.write(f"{text}\n")
    return line


if __name__ == "__main__":
    sys.exit(main())
