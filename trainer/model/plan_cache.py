"""Sharding plans kept between attempts and runs: an unchanged model gets the same plan; a search may take minutes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
from pathlib import Path
from typing import Any

from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_configs import BaseEmbeddingConfig

from trainer.atomic_file import replace_text

log = logging.getLogger(__name__)

PLAN_FORMAT = 1
_STORED = {"sharding_type", "compute_kernel", "ranks", "sharding_spec"}


class PlanFormatError(ValueError):
    """A stored plan that cannot be used as it is."""


@dataclasses.dataclass(frozen=True)
class PlanKey:
    """All that a plan depends on."""

    tables: dict[str, BaseEmbeddingConfig]
    constraints: dict[str, ParameterConstraints]
    topology: Topology

    @property
    def digest(self) -> str:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "torchrec")}
        parts = {
            "format": PLAN_FORMAT,
            "tables": {name: _table_facts(config) for name, config in self.tables.items()},
            "constraints": {name: repr(constraint) for name, constraint in sorted(self.constraints.items())},
            "topology": repr(self.topology),
            "world_size": self.topology.world_size,
            "versions": versions,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


@dataclasses.dataclass(frozen=True)
class PlanCache:
    """Plans as JSON files in a folder that runs of one refresh share."""

    folder: Path

    def path(self, key: PlanKey) -> Path:
        return self.folder / f"sharding-plan-{key.digest}.json"

    def load(self, key: PlanKey) -> ShardingPlan | None:
        """The plan of `key`; None when there is none, or, with a warning, when its file cannot be read."""
        path = self.path(key)
        try:
            return plan_from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("sharding plan %s cannot be used (%s); planning anew and replacing it", path, error)
            return None

    def store(self, key: PlanKey, plan: ShardingPlan) -> None:
        """Keep `plan`; a plan with features that the format does not hold is not kept, with a warning."""
        path = self.path(key)
        try:
            text = json.dumps(plan_to_json(plan))
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(path, text)
        except (OSError, PlanFormatError) as error:
            log.warning("sharding plan not kept in %s: %s", path, error)


def plan_to_json(plan: ShardingPlan) -> dict[str, Any]:
    """`plan` as plain data.

    Raises:
        PlanFormatError: it uses a feature that the format does not hold.
    """
    modules: dict[str, Any] = {}
    for path, tables in plan.plan.items():
        if not isinstance(tables, EmbeddingModuleShardingPlan):
            raise PlanFormatError(f"{path}: {type(tables).__name__} is not an embedding module's plan")
        modules[path] = {table: _parameter_to_json(table, sharding) for table, sharding in tables.items()}
    return {"format": PLAN_FORMAT, "modules": modules}


def plan_from_json(data: dict[str, Any]) -> ShardingPlan:
    """The plan in `data`.

    Raises:
        PlanFormatError: another format.
        KeyError, TypeError, ValueError, AttributeError: not a plan.
    """
    if data["format"] != PLAN_FORMAT:
        raise PlanFormatError(f"format {data['format']!r}, this release reads {PLAN_FORMAT}")
    return ShardingPlan(
        {
            path: EmbeddingModuleShardingPlan(
                {table: _parameter_from_json(sharding) for table, sharding in tables.items()}
            )
            for path, tables in data["modules"].items()
        }
    )


def _parameter_to_json(table: str, sharding: ParameterSharding) -> dict[str, Any]:
    for field in dataclasses.fields(sharding):
        if field.name not in _STORED and getattr(sharding, field.name) is not None:
            raise PlanFormatError(f"table {table}: {field.name} is set")
    spec = sharding.sharding_spec
    if not isinstance(spec, EnumerableShardingSpec):
        raise PlanFormatError(f"table {table}: {type(spec).__name__} does not enumerate its shards")
    shards = [
        {"offsets": list(shard.shard_offsets), "sizes": list(shard.shard_sizes), "placement": str(shard.placement)}
        for shard in spec.shards
    ]
    kind = {"type": sharding.sharding_type, "kernel": sharding.compute_kernel, "ranks": sharding.ranks}
    return {**kind, "shards": shards}


def _parameter_from_json(data: dict[str, Any]) -> ParameterSharding:
    shards = [
        ShardMetadata(
            shard_offsets=shard["offsets"], shard_sizes=shard["sizes"], placement=_remote_device(shard["placement"])
        )
        for shard in data["shards"]
    ]
    return ParameterSharding(
        sharding_type=data["type"],
        compute_kernel=data["kernel"],
        ranks=data["ranks"],
        sharding_spec=EnumerableShardingSpec(shards),
    )


def _table_facts(config: BaseEmbeddingConfig) -> dict[str, Any]:
    # Not init_fn: a function's repr holds its address, which no other process shares, and no plan depends on it.
    fields = [field.name for field in dataclasses.fields(config) if field.name != "init_fn"]
    return {name: repr(getattr(config, name)) for name in fields}
