"""The smaller parts of a rank's state: its random generators, its metrics, and the watch over its losses."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from training_job import FIRST_DAY, small_spec

from trainer.attempt import Rank
from trainer.dpp.cursor import Interval
from trainer.dpp.plan import ReadPlan
from trainer.dpp.scan import unchecked_plan
from trainer.loss_watch import LossWatch
from trainer.progress import ProgressiveQuality
from trainer.random_states import GeneratorStart, capture_generators
from trainer.spec import Window

CPU = torch.device("cpu")


def place(rank: int = 0, world_size: int = 2) -> Rank:
    return Rank(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)


def start(step: int = 0, *, of: Rank | None = None, saved: dict[str, object] | None = None) -> GeneratorStart:
    return GeneratorStart(seed=7, place=of or place(), device=CPU, step=step, saved=saved or {})


def draws() -> list[float]:
    """Of every generator, a normal first: it leaves a second one behind that belongs to the state."""
    return [random.gauss(), np.random.normal(), float(torch.randn(())), random.random(), np.random.random()]


def test_generators_go_on_where_they_were_saved_whatever_was_drawn_since() -> None:
    start().apply()
    draws()
    saved = json.loads(json.dumps(capture_generators(CPU)))
    expected = draws() + draws()
    start(99).apply()
    start(saved=saved).apply()
    assert draws() + draws() == expected


def test_ranks_and_worlds_and_resumed_steps_draw_other_numbers() -> None:
    starts = [start(), start(of=place(1)), start(of=place(0, 4)), start(50)]
    seen = []
    for begin in (*starts, start()):
        begin.apply()
        seen.append(draws())
    assert len({tuple(numbers) for numbers in seen}) == len(starts)
    assert seen[-1] == seen[0]


def test_metrics_have_the_same_bits_whenever_reports_were_due() -> None:
    drawn = torch.Generator().manual_seed(3)
    batches = [(torch.randn(50, generator=drawn), torch.randint(0, 2, (50,), generator=drawn)) for _ in range(40)]
    often, never = ProgressiveQuality(), ProgressiveQuality()
    windows = torch.zeros_like(often.settle())
    for number, (logits, labels) in enumerate(batches):
        often.add(logits, labels)
        never.add(logits, labels)
        if number % 3 == 0:
            windows += often.settle()
        if number == 21:
            resumed = ProgressiveQuality()
            resumed.load_json(json.loads(json.dumps(often.to_json())))
            assert not resumed.settle()[0].any()  # what was saved is no part of the new attempt's first window
            often = resumed
    assert often.to_json() == never.to_json()
    assert windows[1, 1:].sum() > windows[0, 1:].sum() == 40 * 50


@pytest.fixture
def plan(landed: Path) -> ReadPlan:
    return unchecked_plan(small_spec(), landed, Window(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=2)))


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_told_with_its_rank_step_and_rows(plan: ReadPlan, loss: float) -> None:
    watch = LossWatch(rank=3, plan=plan, device=CPU)
    watch.add(torch.tensor(0.7), step=1, rows=(Interval(0, 0, 0, 32),))
    assert watch.so_far() is None
    watch.add(torch.tensor(loss), step=2, rows=(Interval(0, 0, 32, 40), Interval(1, 0, 0, 24)))
    watch.add(torch.tensor(float("nan")), step=3, rows=(Interval(1, 0, 24, 50),))
    message = watch.so_far() or ""
    assert f"the loss of rank 3 in step 2 is {loss}" in message
    assert f"{plan.files[0].path} row group 0 training rows 32 to 39" in message
    assert f"{plan.files[1].path} row group 0 training rows 0 to 23" in message
    assert watch.settled() == message  # the first one, not what it spread to
