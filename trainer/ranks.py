"""This process among the job's ranks: its device, its process groups, and what the ranks agree on every step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from trainer.attempt import Rank, RankError
from trainer.spec import Device

# Longer than ranks may differ in a cold compilation. A dead rank's sockets close, which the others notice at once; this
# bounds only a silent one.
COLLECTIVE_TIMEOUT = timedelta(minutes=5)


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
    """`control` is gloo over all ranks, for small facts; the default group moves tensors and is NCCL on GPUs."""

    control: dist.ProcessGroup

    @classmethod
    def create(cls, place: Rank, device: torch.device) -> ProcessGroups:
        """Join the other ranks at MASTER_ADDR:MASTER_PORT (a lone process needs neither). Collective."""
        alone = place.world_size == 1 and not os.environ.get("MASTER_ADDR")
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            store=torch._C._distributed_c10d.HashStore() if alone else None,
            rank=place.rank,
            world_size=place.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        return cls(control=dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT))

    def close(self) -> None:
        """Leave the groups."""
        dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What a rank knows before a step. A flag is 1 or 0."""

    rows: int
    preempted: int = 0
    data_failed: int = 0
    save_due: int = 0
    report_due: int = 0


@dataclass(frozen=True, kw_only=True)
class StepAgreement:
    """What all ranks know before a step: rows over all and of the largest, and which flags any rank has raised."""

    rows: int
    largest: int
    preempted: bool
    data_failed: bool
    save_due: bool
    report_due: bool


def agree(facts: StepFacts, group: dist.ProcessGroup) -> StepAgreement:
    """Every rank's facts put together, by one small all_reduce. Collective."""
    vector = torch.zeros(4 + dist.get_world_size(group), dtype=torch.int64)
    vector[:4] = torch.tensor([facts.preempted, facts.data_failed, facts.save_due, facts.report_due])
    vector[4 + dist.get_rank(group)] = facts.rows
    dist.all_reduce(vector, group=group)
    preempted, data_failed, save_due, report_due, *rows = vector.tolist()
    return StepAgreement(
        rows=sum(rows),
        largest=max(rows),
        preempted=preempted > 0,
        data_failed=data_failed > 0,
        save_due=save_due > 0,
        report_due=report_due > 0,
    )
