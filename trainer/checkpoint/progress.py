"""Progress: how far the stream is consumed; each rank saves its own with the weights, and the commit joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trainer.checkpoint.errors import IncoherentSaveError
from trainer.dpp.cursor import Interval, normalized
from trainer.dpp.errors import CursorError
from trainer.storage import StoragePath


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """What one rank carries on with; only a rank of the same number in a world of the same size can.

    remaining   rows it has still to read, in its reading order
    metrics     its accumulators: nested dicts of numbers and lists of numbers
    random      states of its random generators, JSON-able (`trainer.random_states`)
    """

    remaining: Sequence[Interval] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        remaining = [interval.to_dict() for interval in self.remaining]
        return {"remaining": remaining, "metrics": dict(self.metrics), "random": dict(self.random)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RankProgress:
        """Raises KeyError, TypeError or ValueError when `document` is not what `to_dict` wrote."""
        try:
            remaining = tuple(Interval.from_dict(interval) for interval in document["remaining"])
        except CursorError as error:  # what is damaged is the checkpoint, not the data
            raise ValueError(str(error)) from None
        return cls(remaining=remaining, metrics=document["metrics"], random=document["random"])


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The job's progress. A rank saves it with itself as the only one of `ranks`; after the commit all are there.

    step        steps completed
    cursor      samples of the planned stream consumed, over all ranks
    world_size  ranks at the save
    window      days of the feature log, [start, end), ISO dates
    ranks       in rank order
    """

    step: int
    cursor: int
    world_size: int
    window: tuple[str, str]
    ranks: tuple[RankProgress, ...]

    @property
    def remaining(self) -> list[Interval]:
        """Rows still to be read by the job, in stream order: what another number of ranks divides anew."""
        return normalized(interval for rank in self.ranks for interval in rank.remaining)

    @property
    def metrics(self) -> dict[str, Any]:
        """The ranks' accumulators added up: what one rank of another world takes, while the others start at zero."""
        total = dict(self.ranks[0].metrics)
        for number, rank in enumerate(self.ranks[1:], start=1):
            total = _added(total, rank.metrics, f"metrics of rank {number}")
        return total

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "cursor": self.cursor,
            "world_size": self.world_size,
            "window": list(self.window),
            "ranks": [rank.to_dict() for rank in self.ranks],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Progress:
        """Raises KeyError, TypeError or ValueError when `document` is not what `to_dict` wrote."""
        start, end = document["window"]
        return cls(
            step=document["step"],
            cursor=document["cursor"],
            world_size=document["world_size"],
            window=(start, end),
            ranks=tuple(RankProgress.from_dict(rank) for rank in document["ranks"]),
        )


def merge(parts: Sequence[Progress], path: StoragePath) -> Progress:
    """The job's progress out of its ranks', in rank order.

    Raises:
        IncoherentSaveError: ranks at different steps or cursors, accumulators that do not add up, or two ranks that
            claim the same rows, which would be trained on twice after a restore (case C8).
    """
    first = parts[0]
    for rank, part in enumerate(parts):
        for name in ("step", "cursor", "world_size", "window"):
            if getattr(part, name) != getattr(first, name):
                raise IncoherentSaveError(
                    path, f"rank {rank} has {name} {getattr(part, name)!r} and rank 0 {getattr(first, name)!r}"
                )
        if len(part.ranks) != 1:
            raise IncoherentSaveError(path, f"rank {rank} saved the progress of {len(part.ranks)} ranks, not its own")
    _check_disjoint(parts, path)
    merged = replace(first, ranks=tuple(rank for part in parts for rank in part.ranks))
    try:
        _ = merged.metrics
    except ValueError as error:
        raise IncoherentSaveError(path, str(error)) from None
    return merged


def _check_disjoint(parts: Sequence[Progress], path: StoragePath) -> None:
    claims = sorted(
        (interval, rank) for rank, part in enumerate(parts) for interval in part.ranks[0].remaining if interval.rows
    )
    for (before, one), (after, other) in pairwise(claims):
        if (before.file, before.row_group) == (after.file, after.row_group) and after.start < before.stop:
            raise IncoherentSaveError(
                path,
                f"ranks {one} and {other} both claim rows of {after}; each rank passes what itself has left to read, "
                "not what all have",
            )


def _added(left: Any, right: Any, where: str) -> Any:
    if isinstance(left, Mapping) and isinstance(right, Mapping) and left.keys() == right.keys():
        return {key: _added(left[key], right[key], f"{where}.{key}") for key in left}
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [_added(a, b, where) for a, b in zip(left, right, strict=True)]
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left + right
    raise ValueError(f"{where} cannot be added to those of the ranks before it")
