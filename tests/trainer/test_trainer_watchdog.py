"""The watchdog: what counts as a hang and what does not, and how a rank that hangs ends, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from ett_reports.events import Cause, Phase
from ett_reports.reader import read_log
from trainer.watchdog import Hang, HangLimits, Watchdog

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 30.0


class Observer:
    """Watches for hangs and signs of life."""

    def __init__(self) -> None:
        self.hung = threading.Event()
        self.hang: Hang | None = None
        self.lives = 0

    def on_hang(self, hang: Hang) -> None:
        self.hang = hang
        self.hung.set()

    def alive(self) -> None:
        self.lives += 1

    @contextmanager
    def watching(self, **limits: float) -> Iterator[Watchdog]:
        chosen = {"stage_s": 0.2, "factor": 5.0, "floor_s": 0.2, **limits}
        watchdog = Watchdog(HangLimits(**chosen), on_hang=self.on_hang, alive=self.alive)
        watchdog.start()
        try:
            yield watchdog
        finally:
            watchdog.stop()

    def found(self) -> Hang:
        assert self.hung.wait(PATIENCE_S)
        assert self.hang is not None
        return self.hang


def test_a_stage_that_does_not_end_is_a_hang_and_says_which():
    observer = Observer()
    with observer.watching() as watchdog:
        watchdog.entered(Phase.PROCESS_GROUP)
        hang = observer.found()
    assert (hang.phase, hang.limit_s) == (Phase.PROCESS_GROUP, 0.2)
    assert "no end of process_group for" in str(hang)
    assert observer.lives == 0  # else the launcher and the report would take the silence for life


def test_a_stage_that_asks_for_time_gets_it_and_shows_that_it_is_alive():
    observer = Observer()
    with observer.watching() as watchdog:
        watchdog.entered(Phase.COMPILE, silence_s=1.0)
        hang = observer.found()
    assert (hang.phase, hang.limit_s) == (Phase.COMPILE, 1.0)
    assert observer.lives > 0


def test_steps_that_go_on_are_no_hang_however_long_they_take_together():
    observer = Observer()
    with observer.watching(stage_s=1.0, floor_s=1.0) as watchdog:
        watchdog.entered(Phase.STEP)
        for _ in range(30):
            time.sleep(0.05)
            watchdog.stepped()
    assert not observer.hung.is_set()


def test_no_step_for_a_multiple_of_the_median_is_a_hang():
    observer = Observer()
    with observer.watching(stage_s=60, floor_s=0.1, factor=20) as watchdog:
        watchdog.entered(Phase.STEP)
        for _ in range(5):
            time.sleep(0.02)
            watchdog.stepped()
        hang = observer.found()
    assert hang.phase is Phase.STEP
    assert hang.limit_s >= 20 * 0.02
    assert "no step for" in str(hang)


def test_a_checkpoint_in_the_loop_has_its_own_limit_and_does_not_lengthen_that_of_steps():
    observer = Observer()
    with observer.watching(stage_s=60, floor_s=0.2, factor=2) as watchdog:
        watchdog.entered(Phase.STEP)
        watchdog.stepped()
        watchdog.entered(Phase.CHECKPOINT_BLOCKING, silence_s=60)
        time.sleep(0.6)  # longer than a step may take
        assert not observer.hung.is_set()
        watchdog.stepped()
        hang = observer.found()
    assert (hang.phase, hang.limit_s) == (Phase.STEP, 0.2)


@pytest.mark.parametrize(
    ("steps_s", "limit_s"), [([], 300.0), ([0.01, 0.01, 9.0], 2.0), ([1.0], 10.0), ([1.0, 3.0], 20.0)]
)
def test_the_limit_of_a_step_goes_by_the_median_above_a_floor(steps_s: list[float], limit_s: float):
    assert HangLimits(stage_s=300.0, factor=10.0, floor_s=2.0).for_step(steps_s) == limit_s


HANGING_STARTUP = """
import sys, threading
from trainer.attempt import Attempt
from trainer.hurried_exit import HurriedExit
from trainer.stages import Stage, run_in_sequence
from trainer.watchdog import HangLimits, Watchdog
from ett_reports.events import Cause, Phase

def waits_for_a_peer(span):
    lock = threading.Lock(); lock.acquire(); lock.acquire()

def reads_ahead():
    threading.Event().wait()

attempt = Attempt.from_environment()
with attempt.open_log() as recorder:
    hurried = HurriedExit(attempt, recorder)
    limits = HangLimits(stage_s=0.5, factor=10, floor_s=0.5)
    watchdog = Watchdog(limits, on_hang=hurried.hung, alive=recorder.heartbeat)
    watchdog.start()
    threading.Thread(target=reads_ahead, daemon=True).start()
    run_in_sequence([Stage(Phase.PROCESS_GROUP, waits_for_a_peer)], recorder, watchdog)
"""


def test_a_rank_that_hangs_shows_all_its_threads_tells_why_and_exits_as_hung(tmp_path: Path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "ETT_RUN_FOLDER": str(tmp_path / "refresh" / "run"),
        "ETT_ERROR_FILE": str(tmp_path / "error.json"),
    }
    ended = subprocess.run(
        [sys.executable, "-c", HANGING_STARTUP],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 70, ended.stderr
    assert "rank 0 of attempt 1 hangs: no end of process_group for" in ended.stderr
    assert "in waits_for_a_peer" in ended.stderr  # the main thread
    assert "in reads_ahead" in ended.stderr  # and the others
    told = json.loads((tmp_path / "error.json").read_text())
    assert told["cause"] == "hang"
    assert "waits_for_a_peer" in told["details"]["traceback"]
    (process,) = read_log(tmp_path / "refresh" / "run" / "events").processes
    (failure,) = [point for point in process.points if point.name == "failure"]
    assert failure.attrs["cause"] == "hang"
    assert process.ended


def test_a_rendezvous_that_waits_in_vain_for_a_peer_counts_as_a_hang():
    import torch.distributed as dist

    from trainer.__main__ import cause_of

    with pytest.raises(RuntimeError) as caught:
        dist.TCPStore("127.0.0.1", 0, world_size=2, is_master=True, timeout=timedelta(seconds=1))
    assert cause_of(caught.value) is Cause.HANG


def test_a_peer_that_is_gone_is_lost_infrastructure():
    import torch.distributed as dist

    from trainer.__main__ import cause_of

    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))
    peer = dist.TCPStore("127.0.0.1", master.port, is_master=False, timeout=timedelta(seconds=10))
    del master
    with pytest.raises(RuntimeError) as caught:
        peer.get("address of the other rank")
    assert cause_of(caught.value) is Cause.INFRASTRUCTURE


def test_what_is_no_rank_s_silence_is_the_program_s_fault():
    from trainer.__main__ import cause_of

    assert cause_of(RuntimeError("size mismatch")) is Cause.APPLICATION
    assert cause_of(TimeoutError("timed out")) is Cause.APPLICATION


def test_a_stage_that_hangs_beside_one_that_may_take_long_is_found_by_its_own_limit():
    observer = Observer()
    with (
        observer.watching(stage_s=0.5) as watchdog,
        watchdog.watching(Phase.COMPILE, silence_s=3600.0),
        watchdog.watching(Phase.TRAIN_MODULE),
    ):
        assert watchdog.phase is Phase.COMPILE
        hang = observer.found()
    assert (hang.phase, hang.limit_s) == (Phase.TRAIN_MODULE, 0.5)


def test_a_stage_that_has_ended_is_not_watched_while_others_go_on():
    observer = Observer()
    with observer.watching(stage_s=0.3) as watchdog, watchdog.watching(Phase.COMPILE, silence_s=3600.0):
        with watchdog.watching(Phase.TRAIN_MODULE):
            pass
        time.sleep(1.0)
        assert watchdog.phase is Phase.COMPILE
    assert not observer.hung.is_set()
