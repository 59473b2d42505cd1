"""A job request as a TorchX application: what every scheduler adapter starts from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.launch.interpreters import interpreter_of
from trainer.launch.jobs import JobRequest
from trainer.run_folder import HOME_VARIABLE, RUN_FOLDER_VARIABLE

if TYPE_CHECKING:
    from torchx.specs import AppDef

EVENTS_VARIABLE = "ETT_EVENTS_DIR"
ATTEMPT_VARIABLE = "ETT_ATTEMPT"
TASK_VARIABLE = "ETT_TASK"
ERROR_FILE_VARIABLE = "ETT_ERROR_FILE"
GRACE_VARIABLE = "ETT_GRACE_S"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a scheduler decides about a job: where its ranks meet and where they leave their files.

    Attributes:
        local_world_size: ranks per node.
        environment: what else the scheduler gives to every rank.
    """

    home: str
    events_dir: str
    errors_dir: str
    master_address: str
    master_port: int
    local_world_size: int
    environment: dict[str, str]


def app_definition(request: JobRequest, placement: Placement, *, image: str = "") -> AppDef:
    """One role of `replicas` ranks, run directly: torchrun would hide exit codes and cost seconds.

    One replica is one rank; on one node LOCAL_RANK is its rank, elsewhere the scheduler places one rank a node.
    """
    from torchx.specs import AppDef, Resource, Role

    resources = request.resources
    role = Role(
        name=request.key.task,
        image=image,
        entrypoint=interpreter_of(request.command[0]),
        args=["-m", *map(_literal, request.command)],
        env=_environment(request, placement),
        num_replicas=request.replicas,
        max_retries=0,  # every attempt is the control plane's decision
        resource=Resource(cpu=resources.cpus, gpu=resources.gpus, memMB=resources.memory_mb),
    )
    return AppDef(name=request.key.name, roles=[role])


def _environment(request: JobRequest, placement: Placement) -> dict[str, str]:
    from torchx.specs import macros

    fixed = {
        HOME_VARIABLE: placement.home,
        RUN_FOLDER_VARIABLE: request.run_folder.url,
        EVENTS_VARIABLE: placement.events_dir,
        ATTEMPT_VARIABLE: str(request.key.attempt),
        TASK_VARIABLE: request.key.task,
        GRACE_VARIABLE: f"{request.grace_s:g}",
        "WORLD_SIZE": str(request.replicas),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "MASTER_ADDR": placement.master_address,
        "MASTER_PORT": str(placement.master_port),
        **placement.environment,
    }
    one_node = placement.local_world_size == request.replicas
    return {
        **{name: _literal(value) for name, value in {**request.env, **fixed}.items()},
        "RANK": macros.replica_id,
        "LOCAL_RANK": macros.replica_id if one_node else "0",
        ERROR_FILE_VARIABLE: f"{_literal(placement.errors_dir)}/rank-{macros.replica_id}.json",
    }


def _literal(text: str) -> str:
    """Text that TorchX's macro substitution leaves alone."""
    return text.replace("$", "$$")
