"""The cursor: every row once, whatever the ranks, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.dpp.cursor import Interval, count, divide, normalized, skip, steps_for
from trainer.dpp.errors import CursorError

Row = tuple[int, int, int]


def rows_of(intervals: list[Interval] | tuple[Interval, ...]) -> list[Row]:
    return [(part.file, part.row_group, row) for part in intervals for row in range(part.start, part.stop)]


streams = st.lists(st.integers(0, 40), max_size=8).map(
    lambda sizes: [Interval(number // 2, number % 2, 0, size) for number, size in enumerate(sizes)]
)


@given(streams, st.integers(1, 9))
def test_divided_rows_are_the_same_rows_and_shares_differ_by_at_most_one(stream: list[Interval], ranks: int) -> None:
    shares = divide(stream, ranks)
    sizes = [count(share) for share in shares]
    assert sorted(row for share in shares for row in rows_of(share)) == sorted(rows_of(stream))
    assert max(sizes) - min(sizes) <= 1
    assert all(share == sorted(share) for share in shares)


@given(streams, st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_division_depends_on_the_rows_only_and_not_on_how_they_arrive(
    stream: list[Interval], ranks: int, random: object
) -> None:
    arrived = [part for share in divide(stream, 3) for part in share]
    random.shuffle(arrived)  # type: ignore[attr-defined]
    assert divide(arrived, ranks) == divide(stream, ranks)


@given(streams, st.integers(1, 4), st.data())
def test_dividing_again_what_ranks_left_loses_and_repeats_nothing(
    stream: list[Interval], ranks: int, data: st.DataObject
) -> None:
    shares = divide(stream, ranks)
    taken = [data.draw(st.integers(0, count(share))) for share in shares]
    left = [part for share, rows in zip(shares, taken, strict=True) for part in skip(share, rows)]
    done = [row for share, rows in zip(shares, taken, strict=True) for row in rows_of(share)[:rows]]
    again = [row for share in divide(left, data.draw(st.integers(1, 5))) for row in rows_of(share)]
    assert sorted(done + again) == sorted(rows_of(stream))


def test_two_ranks_move_through_the_stream_together() -> None:
    stream = [Interval(day, 0, 0, 100) for day in range(10)]
    first, second = divide(stream, 2)
    assert [part.file for part in first] == [0, 2, 4, 6, 8]
    assert [part.file for part in second] == [1, 3, 5, 7, 9]


def test_overlapping_intervals_are_refused_because_rows_would_be_read_twice() -> None:
    with pytest.raises(CursorError, match="overlap"):
        divide([Interval(0, 0, 0, 10), Interval(0, 0, 9, 12)], 2)


def test_neighbours_are_joined_and_empty_intervals_dropped() -> None:
    parts = [Interval(0, 0, 5, 9), Interval(0, 1, 3, 3), Interval(0, 0, 0, 5)]
    assert normalized(parts) == [Interval(0, 0, 0, 9)]


def test_skipping_more_rows_than_there_are_is_an_error() -> None:
    with pytest.raises(CursorError, match="only 3"):
        skip([Interval(0, 0, 0, 3)], 4)


@pytest.mark.parametrize(("rows", "steps"), [(0, 0), (1, 1), ([512, 513], 2), ([512, 512], 1), ([], 0)])
def test_all_ranks_take_the_steps_of_the_one_with_most_rows(rows: int | list[int], steps: int) -> None:
    assert steps_for(rows, 512) == steps


@pytest.mark.parametrize("bad", [{}, {"file": 0, "row_group": 0, "start": 5, "stop": 2}, {"file": "x"}, None])
def test_a_damaged_interval_is_named(bad: object) -> None:
    with pytest.raises(CursorError):
        Interval.from_dict(bad)  # type: ignore[arg-type]


def test_an_interval_survives_its_json() -> None:
    interval = Interval(3, 1, 20, 300)
    assert Interval.from_dict(interval.to_dict()) == interval
