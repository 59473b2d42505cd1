"""Whose a refresh is and where its tasks queue: the team and the cluster's pool, as Airflow knows them."""

from __future__ import annotations

from typing import Any

from trainer.spec import RefreshSpec

# A job that holds its capacity is followed before another one asks for some.
_PRIORITIES = {"launch": 1, "train": 10}


def pool_arguments(task: str, spec: RefreshSpec) -> dict[str, Any]:
    """The operator arguments that hold a task in its cluster's pool; none for a spec that names no pool.

    Only `launch` and `train` are held: the other jobs take no training devices.
    """
    if spec.resources.pool is None or task not in _PRIORITIES:
        return {}
    return {"pool": spec.resources.pool, "priority_weight": _PRIORITIES[task], "weight_rule": "absolute"}


def team_arguments(spec: RefreshSpec) -> dict[str, Any]:
    """The DAG's default arguments: its team is the owner that Airflow shows and filters by."""
    return {"owner": spec.team} if spec.team else {}
