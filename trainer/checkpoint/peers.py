"""The other ranks: the few things that they must agree on outside a save, which itself uses no collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

Value = TypeVar("Value")


@dataclass(frozen=True)
class Peers:
    """The ranks of a process group; a lone process where none is initialized."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Peers:
        """The ranks of `group`, None being the default one."""
        if not dist.is_initialized():
            return cls(0, 1)
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    def from_first(self, value: Value) -> Value:
        """Rank 0's value, on every rank. Collective."""
        if not dist.is_initialized():
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]

    def of_all(self, value: Value) -> list[Value]:
        """Every rank's value, in rank order, on every rank. Collective."""
        if not dist.is_initialized():
            return [value]
        values: list[Value] = [value] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values
