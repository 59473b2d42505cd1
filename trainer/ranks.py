"""This process among the job's ranks: its device, its process groups, and what the ranks agree on every step."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainer.attempt import Rank, RankError
from trainer.dpp.errors import DppError
from trainer.spec import Device

# Longer than ranks may differ in a cold compilation. A dead rank's sockets close, which the others notice at once; this
# bounds only a silent one.
COLLECTIVE_TIMEOUT = timedelta(minutes=5)
LONGEST_COMPILATION = timedelta(hours=2)
"""One rank may find all graphs in its cache and wait for another that compiles them (an hour and more, paper IV-B)."""


def choose_device(wanted: Device, place: Rank) -> torch.device:
    """The device of this rank. With `auto`, a GPU where there is one. (The CUDA path has not run on a GPU yet.)

    Raises:
        RankError: `cuda` is asked for and there is none for this rank.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted is Device.CPU or (wanted is Device.AUTO and not gpus):
        torch.set_num_threads(place.threads)
        return torch.device("cpu")
    if place.local_rank >= gpus:
        found = f"local rank {place.local_rank} finds {gpus} GPUs on its host"
        raise RankError(f"{found}; give it as many as ranks, or set resources.device: cpu")
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True)
class ProcessGroups:
    """The default group moves tensors and is NCCL on GPUs; the others are gloo over all ranks.

    Attributes:
        control: small facts.
        compiling: the ranks' progress in compilation, which may run beside stages that use the others.
    """

    control: dist.ProcessGroup
    compiling: dist.ProcessGroup

    @classmethod
    def create(cls, place: Rank, device: torch.device, *, longest_wait_s: float = 0.0) -> ProcessGroups:
        """Join the other ranks at MASTER_ADDR:MASTER_PORT (a lone process needs neither). Collective.

        `longest_wait_s`: how long one rank may have the others wait for it by right, if that is more than usual.
        """
        timeout = max(COLLECTIVE_TIMEOUT, timedelta(seconds=longest_wait_s))
        alone = place.world_size == 1 and not os.environ.get("MASTER_ADDR")
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            store=torch._C._distributed_c10d.HashStore() if alone else None,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
        )
        return cls(
            control=dist.new_group(backend="gloo", timeout=timeout),
            compiling=dist.new_group(backend="gloo", timeout=max(timeout, LONGEST_COMPILATION)),
        )

    def close(self) -> None:
        """Leave the groups."""
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What a rank knows before a step. A flag is 1 or 0."""

    rows: int
    preempted: int = 0
    data_failed: int = 0
    not_finite: int = 0
    save_failed: int = 0
    save_due: int = 0
    saver_busy: int = 0
    report_due: int = 0


@dataclass(frozen=True, kw_only=True)
class StepAgreement:
    """What all ranks know before a step: rows over all and of the largest, and which flags any rank has raised."""

    rows: int
    largest: int
    preempted: bool
    data_failed: bool
    not_finite: bool
    save_failed: bool
    save_due: bool
    saver_busy: bool
    report_due: bool


_FLAGS = tuple(field.name for field in fields(StepFacts) if field.name != "rows")


def agree(facts: StepFacts, group: dist.ProcessGroup) -> StepAgreement:
    """Every rank's facts put together, by one small all_reduce. Collective."""
    flags = [getattr(facts, name) for name in _FLAGS]
    rows = [0] * dist.get_world_size(group)
    rows[dist.get_rank(group)] = facts.rows
    vector = torch.tensor([*flags, *rows])
    dist.all_reduce(vector, group=group)
    values = vector.tolist()
    raised = {name: value > 0 for name, value in zip(_FLAGS, values, strict=False)}
    rows = values[len(_FLAGS) :]
    return StepAgreement(rows=sum(rows), largest=max(rows), **raised)


class PeerDataError(DppError):
    """Another rank's data failed, so this rank stops as well; says what the other said."""


def shared_data_failure(own: DppError | None, group: dist.ProcessGroup) -> DppError:
    """What to raise where some rank's data failed: this rank's own failure, else the first of the others'. Collective.

    Every rank's error names the file, and every rank ends as bad data.
    """
    found = first_of_all(str(own) if own else None, group)
    return own or PeerDataError("rank {}: {}".format(*found or ("?", "its data failed")))


def first_of_all(message: str | None, group: dist.ProcessGroup) -> tuple[int, str] | None:
    """The lowest rank that has a message, and the message, on every rank; None if none has one. Collective."""
    messages: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(messages, message, group=group)
    return next(((rank, found) for rank, found in enumerate(messages) if found), None)
