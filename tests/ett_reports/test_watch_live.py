"""`watch` beside a process that really trains: it waits for the first event, follows, and ends with the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = [sys.executable, "-u"]

WRITER = """
import sys, time
from pathlib import Path
from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.recorder import Recorder

folder, stop = Path(sys.argv[1]), Path(sys.argv[2])
launcher = Recorder(folder / "events", ProcessIdentity(job="shop/live", source=Source.LAUNCHER, process="launcher"))
for name in ("submitted", "allocated", "launched"):
    launcher.point(name, attempt=1, devices=1)
identity = ProcessIdentity(job="shop/live", source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0)
trainer = Recorder(folder / "events", identity)
with trainer.span(Phase.TRAIN_MODULE):
    time.sleep(0.01)
trainer.begin_steps(cursor=0)
cursor = 0
while not stop.exists():
    time.sleep(0.005)
    cursor += 64
    trainer.step(cursor=cursor)
outcome = stop.read_text()
if outcome == "completed":
    trainer.point("completed", cursor=cursor)
trainer.close()
launcher.point("released", attempt=1, outcome=outcome, exit_codes=[0 if outcome == "completed" else 1])
launcher.close()
print(cursor)
"""


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize(("outcome", "code"), [("completed", 0), ("failed", 1)])
def test_watch_follows_a_process_that_trains(tmp_path: Path, outcome: str, code: int) -> None:
    stop, aside = tmp_path / "stop", tmp_path / "aside"
    watch = [*PYTHON, "-m", "ett_reports", "watch", str(tmp_path / "run"), "--every", "0.05", "--wait", "60"]
    with started(watch) as watcher, started([*PYTHON, "-c", WRITER, str(tmp_path / "run"), str(stop)]) as writer:
        assert watcher.stdout is not None and writer.stdout is not None
        seen: list[int] = []
        while len(set(seen)) < 3:
            line = watcher.stdout.readline()
            assert line, watcher.stderr and watcher.stderr.read()
            assert "ETT" in line and "0 failures" in line
            seen.append(int(line.rsplit("  ", 1)[1].split(" samples")[0].replace(",", "")))
        aside.write_text(outcome)
        aside.replace(stop)
        rest, errors = watcher.communicate(timeout=60)
        written = int(writer.communicate(timeout=60)[0])
    assert watcher.returncode == code and errors == ""
    assert seen == sorted(seen) and 0 < seen[-1] <= written
    assert f"[{outcome}]" in rest and "Where the time went" in rest


def test_watch_gives_up_with_one_line_when_nothing_comes(tmp_path: Path) -> None:
    command = [*PYTHON, "-m", "ett_reports", "watch", str(tmp_path / "run"), "--wait", "0.3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "no such file or folder" in done.stderr
