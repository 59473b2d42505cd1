"""Ranks' progress is joined into the job's, or the save is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_job import progress_at

from trainer.checkpoint.errors import IncoherentSaveError
from trainer.checkpoint.progress import Progress, RankProgress, merge
from trainer.dpp.cursor import Interval

HERE = Path("step-5")


def test_each_ranks_progress_is_kept_and_the_jobs_is_their_sum() -> None:
    parts = [
        progress_at(5, remaining=[Interval(0, 1, 50, 80)], metrics={"train": {"rows": 3, "histogram": [1, 2]}}),
        progress_at(5, remaining=[Interval(0, 0, 0, 9)], metrics={"train": {"rows": 4, "histogram": [10, 20]}}),
    ]
    merged = merge(parts, HERE)
    assert [rank.remaining for rank in merged.ranks] == [(Interval(0, 1, 50, 80),), (Interval(0, 0, 0, 9),)]
    assert merged.remaining == [Interval(0, 0, 0, 9), Interval(0, 1, 50, 80)]
    assert merged.metrics == {"train": {"rows": 7, "histogram": [11, 22]}}
    assert Progress.from_dict(json.loads(json.dumps(merged.to_dict()))) == merged


def test_a_ranks_reading_order_survives() -> None:
    order = (Interval(3, 0, 0, 9), Interval(0, 1, 4, 8), Interval(0, 1, 0, 4))
    rank = RankProgress(remaining=order, random={"python": "abc"})
    assert RankProgress.from_dict(json.loads(json.dumps(rank.to_dict()))) == rank


def test_rows_claimed_by_two_ranks_are_refused() -> None:
    parts = [progress_at(5, remaining=[Interval(0, 0, 50, 80)]), progress_at(5, remaining=[Interval(0, 0, 79, 90)])]
    with pytest.raises(IncoherentSaveError, match="ranks 0 and 1 both claim rows"):
        merge(parts, HERE)


@pytest.mark.parametrize("other", [progress_at(6, remaining=[]), progress_at(5, remaining=[], cursor=51)])
def test_ranks_at_different_points_are_refused(other: Progress) -> None:
    with pytest.raises(IncoherentSaveError, match="rank 1 has"):
        merge([progress_at(5), other], HERE)


def test_a_rank_that_speaks_for_others_is_refused() -> None:
    greedy = replace(progress_at(5, remaining=[]), ranks=(RankProgress(), RankProgress()))
    with pytest.raises(IncoherentSaveError, match="rank 1 saved the progress of 2 ranks, not its own"):
        merge([progress_at(5), greedy], HERE)


def test_accumulators_of_another_form_are_refused() -> None:
    with pytest.raises(IncoherentSaveError, match=r"metrics of rank 1.*cannot be added"):
        merge([progress_at(5, remaining=[]), progress_at(5, remaining=[], metrics={"train": {"rows": 1}})], HERE)


@pytest.mark.parametrize("damage", [{"remaining": [{"file": 0}]}, {"metrics": {}}])
def test_progress_that_is_damaged_is_the_checkpoints_fault_not_the_datas(damage: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        RankProgress.from_dict({"metrics": {}, "random": {}, **damage})
