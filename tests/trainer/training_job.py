"""A real training job on generated data: its run folder, rank processes started directly, and what their logs say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ett_reports.reader import read_log
from tests.small_refresh import small_spec as small_spec
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec

REPOSITORY = Path(__file__).parents[2]
FIRST_DAY = date(2026, 3, 2)


@dataclass
class Job:
    """One run: its folder, and its attempts as groups of rank processes."""

    folder: RunFolder
    spec: RefreshSpec
    planned: int
    attempts: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *, ranks: int = 2, **environment: str) -> list[subprocess.Popen[bytes]]:
        """Start the next attempt's ranks."""
        self.attempts += 1
        port = str(_free_port())
        logs = self.folder.logs_dir / f"a{self.attempts}"
        logs.mkdir(parents=True)
        started = []
        for rank in range(ranks):
            variables = {
                "ETT_RUN_FOLDER": self.folder.url,
                "ETT_ATTEMPT": str(self.attempts),
                "ETT_ERROR_FILE": str(logs / f"error-{rank}.json"),
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{Path(__file__).parent}",
                "PYTHONWARNINGS": "ignore",
                "PYTHONFAULTHANDLER": "1",
                **environment,
            }
            with (logs / f"rank-{rank}.log").open("wb") as output:
                command = [sys.executable, "-m", "trainer"]
                started.append(
                    subprocess.Popen(command, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT)
                )
        self.processes += started
        return started

    def finish(self, processes: list[subprocess.Popen[bytes]], *, timeout_s: float = 300.0) -> list[int]:
        """Exit codes, in rank order. Ranks that take too long are told to show where they are."""
        deadline = time.monotonic() + timeout_s
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            for process in processes:
                process.send_signal(signal.SIGABRT)
            time.sleep(1)
            logs = "\n".join(f"rank {rank}:\n{self.log(rank, 60)}" for rank in range(len(processes)))
            raise AssertionError(f"not ended within {timeout_s} s\n{logs}") from None

    def run(self, *, ranks: int = 2, **environment: str) -> list[int]:
        """One whole attempt; exit codes in rank order."""
        return self.finish(self.start(ranks=ranks, **environment))

    def wait_for(self, what: str, found: Callable[[], Any], *, timeout_s: float = 300.0) -> Any:
        """Poll until `found` gives something."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if result := found():
                return result
            if all(process.poll() is not None for process in self.processes):
                if result := found():
                    return result
                raise AssertionError(f"all ranks ended before {what}:\n{self.log()}")
            time.sleep(0.1)
        raise AssertionError(f"no {what} within {timeout_s} s:\n{self.log()}")

    def log(self, rank: int = 0, lines: int = 30) -> str:
        """The last lines of a rank's output in the newest attempt."""
        path = self.folder.logs_dir / f"a{self.attempts}" / f"rank-{rank}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    # -- what the event log says ----------------------------------------------------------------------------------

    def points(self, name: str, *, attempt: int | None = None, rank: int = 0) -> list[dict[str, Any]]:
        """The attributes of every such point of one rank."""
        return [
            dict(point.attrs)
            for process in self._processes(attempt, rank)
            for point in process.points
            if point.name == name
        ]

    def phases(self, *, attempt: int, rank: int = 0) -> dict[str, float]:
        """Seconds of the spans of one rank, by phase, in the order of their start."""
        seconds: dict[str, float] = {}
        for process in self._processes(attempt, rank):
            for span in process.spans:
                if span.end_ns is not None:
                    seconds[str(span.phase)] = seconds.get(str(span.phase), 0) + (span.end_ns - span.start_ns) / 1e9
        return seconds

    def notes(self, phase: str, *, attempt: int, rank: int = 0) -> dict[str, Any]:
        """What the last span of a phase says besides its time."""
        spans = [span for process in self._processes(attempt, rank) for span in process.spans]
        return [dict(span.attrs) for span in spans if span.phase == phase][-1]

    def cursors(self, *, attempt: int, rank: int = 0) -> list[int]:
        """The cursor after each step of one rank."""
        windows = [window for process in self._processes(attempt, rank) for window in process.windows]
        return [cursor for window in windows for cursor in window.cursor]

    def quality(self, scope: str, *, attempt: int | None = None) -> dict[str, Any]:
        """The last `metrics` point of a scope."""
        return [attrs for attrs in self.points("metrics", attempt=attempt) if attrs["scope"] == scope][-1]

    def _processes(self, attempt: int | None, rank: int) -> list[Any]:
        return [
            process
            for process in read_log(self.folder.events_dir).processes
            if process.identity.rank == rank and attempt in (None, process.identity.attempt)
        ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
