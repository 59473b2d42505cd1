"""Progress: how far the stream is consumed; saved with the weights, merged over the ranks, divided anew on restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer.checkpoint.errors import IncoherentSaveError
from trainer.dpp.cursor import Interval


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One rank's progress when it saves; the whole job's after the commit.

    step        steps completed
    cursor      samples of the planned stream consumed, over all ranks
    remaining   rows still to be read: by this rank when it saves, by the job after the commit
    world_size  ranks at the save
    window      days of the feature log, [start, end), ISO dates
    metrics     accumulators: nested dicts of numbers and lists of numbers; this rank's when it saves, their sum after
                the commit. On restore one rank takes them and the others start at zero
    rng         what rank 0 wants to carry on with
    """

    step: int
    cursor: int
    remaining: Sequence[Interval]
    world_size: int
    window: tuple[str, str]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rng: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        document = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**document, "remaining": [interval.to_dict() for interval in self.remaining]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Progress:
        start, end = document["window"]
        remaining = [Interval.from_dict(interval) for interval in document["remaining"]]
        return cls(**{**document, "remaining": remaining, "window": (start, end)})


def merge(parts: Sequence[Progress], path: Path) -> Progress:
    """The job's progress out of its ranks', in rank order.

    Raises:
        IncoherentSaveError: ranks at different steps or cursors, or two that claim the same rows, which would be
            trained on twice after a restore (case C8).
    """
    first = parts[0]
    for rank, part in enumerate(parts):
        for name in ("step", "cursor", "world_size", "window"):
            if getattr(part, name) != getattr(first, name):
                raise IncoherentSaveError(
                    path, f"rank {rank} has {name} {getattr(part, name)!r} and rank 0 {getattr(first, name)!r}"
                )
    remaining = [interval for part in parts for interval in part.remaining]
    _check_disjoint(parts, path)
    metrics = dict(first.metrics)
    for rank, part in enumerate(parts[1:], start=1):
        metrics = _added(metrics, part.metrics, path, f"metrics of rank {rank}")
    return replace(first, remaining=remaining, metrics=metrics)


def _check_disjoint(parts: Sequence[Progress], path: Path) -> None:
    claims = sorted((interval, rank) for rank, part in enumerate(parts) for interval in part.remaining if interval.rows)
    for (before, one), (after, other) in pairwise(claims):
        if (before.file, before.row_group) == (after.file, after.row_group) and after.start < before.stop:
            raise IncoherentSaveError(
                path,
                f"ranks {one} and {other} both claim rows of {after}; each rank passes what itself has left to read, "
                "not what all have",
            )


def _added(left: Any, right: Any, path: Path, where: str) -> Any:
    if isinstance(left, Mapping) and isinstance(right, Mapping) and left.keys() == right.keys():
        return {key: _added(left[key], right[key], path, f"{where}.{key}") for key in left}
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [_added(a, b, path, where) for a, b in zip(left, right, strict=True)]
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left + right
    raise IncoherentSaveError(path, f"{where} cannot be added to those of the ranks before it")
