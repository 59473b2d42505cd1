"""The cursor: which training rows are still to be read, and how they are divided among ranks.

A row is addressed by its ordinal among the training rows of its row group, so that neither the holdout nor the number
of ranks is part of an address. What remains after any batch is a list of intervals; it can be divided anew over
another number of ranks without losing or repeating a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.dpp.errors import CursorError


@dataclass(frozen=True, order=True, slots=True)
class Interval:
    """Rows [start, stop) of one row group of one planned file, in training-row ordinals."""

    file: int
    row_group: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if min(self.file, self.row_group, self.start) < 0 or self.stop < self.start:
            raise CursorError(f"{self} is not an interval: all numbers from 0 and stop at or after start")

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Interval:
        """Raises CursorError when `data` is not what `to_dict` wrote."""
        try:
            return cls(**{name: int(data[name]) for name in ("file", "row_group", "start", "stop")})
        except (KeyError, TypeError, ValueError) as error:
            raise CursorError(f"{data!r} is not an interval ({error}); the checkpoint's progress is damaged") from None


def count(intervals: Iterable[Interval]) -> int:
    """Rows in all intervals together."""
    return sum(interval.rows for interval in intervals)


def normalized(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals in stream order, neighbours joined, empty ones dropped.

    Raises:
        CursorError: two intervals share a row, which would be trained on twice.
    """
    joined: list[Interval] = []
    for interval in sorted(interval for interval in intervals if interval.rows):
        last = joined[-1] if joined else None
        if last is None or (last.file, last.row_group) != (interval.file, interval.row_group):
            joined.append(interval)
        elif interval.start < last.stop:
            raise CursorError(f"{last} and {interval} overlap; rows would be read twice. Were two ranks' states mixed?")
        elif interval.start == last.stop:
            joined[-1] = Interval(last.file, last.row_group, last.start, interval.stop)
        else:
            joined.append(interval)
    return joined


def divide(intervals: Iterable[Interval], ranks: int) -> list[list[Interval]]:
    """Share rows out among ranks: each row once, shares differing by at most one row, stream order kept in each.

    Whole row groups are dealt in stream order to whichever rank has the fewest rows so far, so that ranks move through
    the days together and a row group is decoded by as few ranks as possible. The result depends only on the set of
    rows, not on the order in which the intervals arrive.

    Raises:
        CursorError: overlapping intervals, or fewer than one rank.
    """
    if ranks < 1:
        raise CursorError(f"cannot divide rows among {ranks} ranks; at least 1 is needed")
    remaining = normalized(intervals)
    whole, extra = divmod(count(remaining), ranks)
    room = [whole + (rank < extra) for rank in range(ranks)]
    shares: list[list[Interval]] = [[] for _ in range(ranks)]
    for interval in remaining:
        rest = interval
        while rest.rows:
            rank = max(range(ranks), key=lambda candidate: (room[candidate], -candidate))
            taken, rest = _split(rest, min(room[rank], rest.rows))
            room[rank] -= taken.rows
            shares[rank].append(taken)
    return [normalized(share) for share in shares]


def _split(interval: Interval, rows: int) -> tuple[Interval, Interval]:
    middle = interval.start + rows
    return (
        Interval(interval.file, interval.row_group, interval.start, middle),
        Interval(interval.file, interval.row_group, middle, interval.stop),
    )


def skip(intervals: Sequence[Interval], rows: int) -> tuple[Interval, ...]:
    """What is left of `intervals` after their first `rows` rows.

    Raises:
        CursorError: there are fewer rows than that.
    """
    left = rows
    for index, interval in enumerate(intervals):
        if left < interval.rows:
            return (_split(interval, left)[1], *intervals[index + 1 :])
        left -= interval.rows
    if left:
        raise CursorError(f"cannot skip {rows} rows, the intervals hold only {rows - left}")
    return ()


def steps_for(rows_per_rank: Iterable[int] | int, batch_size: int) -> int:
    """Steps that the rank with most rows needs; every rank takes as many, so that all stop together."""
    rows = [rows_per_rank] if isinstance(rows_per_rank, int) else list(rows_per_rank)
    if batch_size < 1:
        raise CursorError(f"batch size {batch_size} is not positive")
    return max((-(-count // batch_size) for count in rows), default=0)
