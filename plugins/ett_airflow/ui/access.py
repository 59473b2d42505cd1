"""Who may see what: every route takes one of these, and each asks Airflow's own permissions."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, HTTPException, Request


def one_dag(request: Request) -> None:
    """Refuse a request that does not name exactly one DAG: to the guard, `~` or none would mean any of them.

    Raises:
        HTTPException: 404.
    """
    named = request.query_params.getlist("dag_id")
    if len(named) != 1 or named[0] in ("", "~"):
        raise HTTPException(404, "no such refresh")


def readable_dag_ids(user: GetUserDep) -> Set[str]:
    """The DAGs that the user may read, by Airflow's own filter; nobody is refused, many may see none."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


MAY_READ_RUN = [Depends(requires_access_dag("GET", DagAccessEntity.RUN)), Depends(one_dag)]
MAY_READ_TASK = [Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE)), Depends(one_dag)]
ReadableDagIds = Annotated[Set[str], Depends(readable_dag_ids)]
