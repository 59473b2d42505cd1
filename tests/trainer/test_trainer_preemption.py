"""A warning to one process: it leaves at once or waits for the ranks to agree, whatever its main thread is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ett_reports.reader import read_log
from trainer.preempted_marker import PreemptedMarker
from trainer.run_folder import RunFolder

REPOSITORY = Path(__file__).parents[2]

RANK = """
import ctypes, os, sys, time
from trainer.attempt import Attempt
from trainer.hurried_exit import HurriedExit
from trainer.preemption import PreemptionFlag
from trainer.stage_file import Standing

preemption = PreemptionFlag.on_sigterm()
attempt = Attempt.from_environment()
recorder = attempt.open_log()
hurried = HurriedExit(attempt, recorder)
preemption.depart_by(hurried, grace_s=attempt.grace_s)

def trains():
    hurried.follow(lambda: Standing(step=7, cursor=70, planned_samples=100))
    preemption.settle()

def sits_in_c():
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)

def says_when_warned():
    while not preemption.raised:
        time.sleep(0.01)
    print("warned", flush=True)

def warns_its_child():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(child, 15)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    time.sleep(0.3)
    print("raised", preemption.raised, flush=True)

steps = sys.argv[1:]
if steps[0] == "trains":
    trains()
    del steps[0]
print("up", flush=True)
for step in steps:
    globals()[step]()
"""


class RankProcess:
    """One process that has the trainer's preemption, and no model."""

    def __init__(self, folder: RunFolder, *steps: str, grace_s: float = 60.0) -> None:
        self.folder = folder
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "ETT_RUN_FOLDER": folder.url,
            "ETT_ATTEMPT": "3",
            "ETT_GRACE_S": str(grace_s),
        }
        command = [sys.executable, "-c", RANK, *steps]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.says("up")

    def says(self, text: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == text

    def warn(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        return self.process.wait(30)

    def points(self) -> list[str]:
        (process,) = read_log(self.folder.events_dir).processes
        return [point.name for point in process.points]


StartRank = Callable[..., RankProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartRank]:
    started: list[RankProcess] = []

    def begin(*steps: str, **fields: float) -> RankProcess:
        started.append(RankProcess(RunFolder.of("refresh", "run", tmp_path).create(), *steps, **fields))
        return started[-1]

    yield begin
    for rank in started:
        rank.process.kill()
        rank.process.wait()


def test_in_startup_a_warning_ends_the_process_at_once_even_while_its_main_thread_sits_in_c_code(start: StartRank):
    rank = start("sits_in_c")
    time.sleep(0.2)  # into C
    rank.warn()
    assert rank.end() == 75
    assert rank.points() == ["preemption_notice", "preemption_save_skipped"]
    marker = PreemptedMarker.read(rank.folder)
    assert marker is not None
    assert (marker.attempt, marker.step, marker.cursor, marker.saved) == (3, None, None, False)
    assert marker.noticed_unix_ns is not None
    assert marker.noticed_unix_ns <= marker.left_unix_ns


def test_in_the_loop_a_warning_only_raises_the_flag(start: StartRank):
    rank = start("trains", "says_when_warned")
    rank.warn()
    rank.says("warned")
    assert rank.end() == 0
    assert PreemptedMarker.read(rank.folder) is None


def test_a_warning_passed_on_twice_at_once_is_one(start: StartRank):
    rank = start("trains", "says_when_warned", "says_when_warned")
    rank.warn()
    rank.warn()
    rank.says("warned")
    rank.says("warned")
    assert rank.end() == 0


def test_a_second_warning_ends_the_process_at_once(start: StartRank):
    rank = start("trains", "says_when_warned", "sits_in_c")
    rank.warn()
    rank.says("warned")
    time.sleep(1.2)
    rank.warn()
    assert rank.end() == 75
    marker = PreemptedMarker.read(rank.folder)
    assert marker is not None
    assert (marker.step, marker.cursor, marker.saved, marker.reason) == (7, 70, False, "warned a second time")


def test_the_end_of_the_grace_time_ends_the_process(start: StartRank):
    rank = start("trains", "sits_in_c", grace_s=1.0)
    rank.warn()
    assert rank.end() == 75
    marker = PreemptedMarker.read(rank.folder)
    assert marker is not None
    assert marker.reason == "the grace time is over"


def test_what_another_rank_knows_better_stays(start: StartRank):
    rank = start("trains", "says_when_warned", "sits_in_c")
    saved = PreemptedMarker(
        attempt=3, step=8, cursor=80, saved=True, reason="", noticed_unix_ns=1, left_unix_ns=time.time_ns()
    )
    saved.write(rank.folder)
    rank.warn()
    rank.says("warned")
    time.sleep(1.2)
    rank.warn()
    assert rank.end() == 75
    assert PreemptedMarker.read(rank.folder) == saved


def test_a_signal_to_a_forked_child_is_no_warning_to_its_parent(start: StartRank):
    rank = start("trains", "warns_its_child")
    rank.says(f"child {-signal.SIGTERM}")
    rank.says("raised False")
    assert rank.end() == 0
