"""kill -9 at random moments of a real loop: no completed step is lost from the account."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.shipping import Shipper

LOOP = """
import mmap, os, sys
from pathlib import Path
from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.recorder import Recorder

folder, truth = Path(sys.argv[1]), sys.argv[2]
# The witness: a count in shared memory, raised only after step() returned.
descriptor = os.open(truth, os.O_RDWR | os.O_CREAT)
os.ftruncate(descriptor, 8)
witness = memoryview(mmap.mmap(descriptor, 8)).cast("q")
identity = ProcessIdentity(job="shop/run", source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0, devices=1)
recorder = Recorder(folder, identity)
with recorder.span(Phase.TRAIN_MODULE):
    pass
recorder.begin_steps(cursor=0)
cursor = 0
while True:
    sum(range(int(sys.argv[3])))
    cursor += 1
    recorder.step(cursor=cursor, data_wait_ns=10)
    witness[0] = cursor
    if cursor % 997 == 0:
        with recorder.span(Phase.CHECKPOINT_BLOCKING):
            pass
"""


def die_in_loop(folder: Path, work: int, alive_s: float) -> int:
    """Run the loop, kill it after a while; returns the steps that were completed for certain."""
    truth = folder / "truth"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LOOP, str(folder / "local"), str(truth), str(work)], cwd=Path(__file__).parents[2]
    )
    try:
        deadline = time.monotonic() + 30
        while not (truth.exists() and int.from_bytes(truth.read_bytes(), "little")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.002)
        time.sleep(alive_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return int.from_bytes(truth.read_bytes(), "little")


def check(folder: Path, work: int, alive_s: float) -> None:
    completed = die_in_loop(folder, work, alive_s)
    shipper = Shipper(folder / "local", folder / "run" / "events")
    shipper.sweep()
    for path in (folder / "run", folder / "local"):
        log = read_log(path)
        cursors = [cursor for window in log.processes[0].windows for cursor in window.cursor]
        # The step whose witness was not written yet may be there too.
        assert cursors == list(range(1, len(cursors) + 1)) and len(cursors) - completed in (0, 1)
        # A window's line may be cut short by the kill itself: its steps are in the flight recorder still.
        assert log.quality.torn_lines <= 1
        assert log.quality.missing_sequence == log.quality.invalid_events == 0
        report = reduce(log)
        assert report.attempts[0].steps == len(cursors) and report.productive_ns > 0


@pytest.mark.parametrize("number", range(20))
def test_kill_loses_no_completed_step(tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    check(tmp_path, work=chance.choice([1, 100, 5000]), alive_s=chance.uniform(0, 0.08))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(200))
def test_kill_loses_no_completed_step_soak(tmp_path: Path, number: int) -> None:
    chance = random.Random(1000 + number)
    check(tmp_path, work=chance.choice([1, 100, 5000, 100_000]), alive_s=chance.uniform(0, 3))
