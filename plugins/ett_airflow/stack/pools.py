"""Airflow pools: one per cluster, named by the specs, so that a cluster holds no more jobs than its people want."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainer.spec import RefreshSpec, SpecError, load_spec

SLOTS = 4
"""Of a pool that nobody has created: training jobs that this Airflow holds on the cluster at once."""


def pools_of(specs: Path) -> frozenset[str]:
    """The pools that the specs in folder `specs` name; a broken spec names none, Airflow shows its error."""
    return frozenset(spec.resources.pool for spec in _readable(specs) if spec.resources.pool is not None)


def create_missing_pools(names: Iterable[str]) -> None:
    """Create pools that Airflow does not have yet. One that exists keeps what its administrator has set."""
    from airflow.models.pool import Pool

    for name in sorted(names):
        if Pool.get_pool(name) is None:
            Pool.create_or_update_pool(
                name,
                slots=SLOTS,
                description=f"training jobs that run on cluster {name} at once",
                include_deferred=True,  # a job is followed from the triggerer, and holds its capacity meanwhile
            )


def _readable(specs: Path) -> Iterable[RefreshSpec]:
    for path in sorted(specs.glob("*.yaml")):
        try:
            yield load_spec(path)
        except SpecError:
            continue
