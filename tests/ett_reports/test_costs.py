"""What the metric costs, in CPU time: the recorder in the hot loop, and reducing as logs grow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from tests.ett_reports.story import SECOND, Story


def test_a_step_costs_at_most_10_us(tmp_path: Path) -> None:
    identity = ProcessIdentity(job="shop/run", source=Source.TRAINER, process="p", attempt=1, rank=0)
    with Recorder(tmp_path, identity) as recorder:
        recorder.begin_steps(cursor=0)
        costs = []
        for block in range(10):
            begin = time.process_time_ns()
            for number in range(1000):
                recorder.step(cursor=block * 1000 + number, data_wait_ns=number)
            costs.append((time.process_time_ns() - begin) / 1000)
    assert min(costs) < 10_000, f"{min(costs) / 1000:.1f} us"


def test_no_system_call_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    identity = ProcessIdentity(job="shop/run", source=Source.TRAINER, process="p", attempt=1, rank=0)
    written: list[int] = []
    real = os.write
    recorder = Recorder(tmp_path, identity)
    monkeypatch.setattr(os, "write", lambda descriptor, data: written.append(len(data)) or real(descriptor, data))
    recorder.begin_steps(cursor=0)
    for number in range(3000):
        recorder.step(cursor=number)
    # One line a second, and one more when a window is full.
    assert len(written) <= 3
    recorder.close()


def job(folder: Path, ranks: int) -> Path:
    story, at, cursor = Story(folder), 0.0, 0
    for attempt in (1, 2):
        story.submit(attempt, at, devices=ranks)
        end = at
        for rank in range(ranks):
            trainer = story.trainer(attempt, at, rank=rank, world_size=ranks)
            for index in range(30):
                with trainer.span((Phase.TRAIN_MODULE, Phase.COMPILE)[index % 2], until=at + index + 1):
                    pass
            trainer.begin(cursor)
            for _ in range(10):
                trainer.steps(5, seconds=1.5, wait=0.01 * rank)
                with trainer.span(Phase.CHECKPOINT_BLOCKING, until=trainer.clock.at / SECOND + 1):
                    pass
            trainer.recorder.close()
            end, reached = trainer.clock.at / SECOND, trainer.cursor
        cursor, at = reached - 50, end + 20
        if attempt == 1:
            story.die(1, end, "infrastructure")
    story.complete(2, end)
    return folder


def test_cost_grows_linearly_with_events(tmp_path: Path) -> None:
    def cost(folder: Path) -> float:
        begin = time.process_time()
        log = read_log(folder)
        reduce(log)
        return (time.process_time() - begin) / log.quality.events

    small, large = job(tmp_path / "small", 4), job(tmp_path / "large", 32)
    cost(small)
    assert min(cost(large) for _ in range(2)) < 3 * max(cost(small) for _ in range(2))
