"""Ranks' progress is merged into the job's, or the save is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_job import progress_at

from trainer.checkpoint.errors import IncoherentSaveError
from trainer.checkpoint.progress import Progress, merge
from trainer.dpp.cursor import Interval

HERE = Path("step-5")


def test_what_remains_is_joined_and_accumulators_are_added() -> None:
    parts = [
        progress_at(5, remaining=[Interval(0, 0, 50, 80)], metrics={"train": {"rows": 3, "histogram": [1, 2]}}),
        progress_at(5, remaining=[Interval(0, 1, 0, 9)], metrics={"train": {"rows": 4, "histogram": [10, 20]}}),
    ]
    merged = merge(parts, HERE)
    assert merged.remaining == [Interval(0, 0, 50, 80), Interval(0, 1, 0, 9)]
    assert merged.metrics == {"train": {"rows": 7, "histogram": [11, 22]}}
    assert Progress.from_dict(merged.to_dict()) == merged


def test_rows_claimed_by_two_ranks_are_refused() -> None:
    parts = [progress_at(5, remaining=[Interval(0, 0, 50, 80)]), progress_at(5, remaining=[Interval(0, 0, 79, 90)])]
    with pytest.raises(IncoherentSaveError, match="ranks 0 and 1 both claim rows"):
        merge(parts, HERE)


@pytest.mark.parametrize("other", [progress_at(6, remaining=[]), progress_at(5, remaining=[], cursor=51)])
def test_ranks_at_different_points_are_refused(other: Progress) -> None:
    with pytest.raises(IncoherentSaveError, match="rank 1 has"):
        merge([progress_at(5), other], HERE)


def test_accumulators_of_another_form_are_refused() -> None:
    with pytest.raises(IncoherentSaveError, match=r"metrics of rank 1.*cannot be added"):
        merge([progress_at(5, remaining=[]), progress_at(5, remaining=[], metrics={"train": {"rows": 1}})], HERE)
