"""`make up`, `make down` and `make status`."""

from __future__ import annotations

import os

from ett_airflow.airflow_api import AirflowApiError
from ett_airflow.stack.display import Display
from ett_airflow.stack.server import (
    Server,
    StackError,
    cancel_jobs,
    members,
    running_server,
    start_server,
    stop_server,
    take_down,
    wait_healthy,
)
from ett_airflow.stack.settings import StackHome

_RUNS = ["running", "queued"]


def up() -> int:
    """Start Airflow and leave it running."""
    stack = StackHome.default().create()
    with Display() as display:
        server = running_server(stack)
        if server is None:
            server = start_server(stack, owner=None)
            try:
                wait_healthy(server, tick=lambda: display.waiting("starting Airflow"))
            except (StackError, KeyboardInterrupt):
                stop_server(server)
                raise
        display.say(f"Airflow   {server.url}")
        display.say(f"user      admin\npassword  {server.password}")
        if os.environ.get("ETT_SCHEDULE", "off") == "off":
            display.say("The daily schedule is off; `make down && ETT_SCHEDULE=on make up` turns it on.")
        display.say("`make refresh` uses this Airflow; `make down` stops it.")
    return 0


def down() -> int:
    """Stop Airflow, a refresh in progress, and every job."""
    stack = StackHome.default()
    server = running_server(stack)
    with Display() as display:
        if server is not None:
            display.waiting("stopping runs, jobs and Airflow")
            _fail_active_runs(server)
        if server is None:
            cancel_jobs()
            display.say("Airflow is not running.")
            return 0
        take_down(server)
        left = members(server.session)
        display.say(f"Stopped.{f' Still there: {left}' if left else ''}")
        return 1 if left else 0


def status() -> int:
    """Say what runs: 0 if Airflow does, 3 if not."""
    server = running_server(StackHome.default())
    with Display() as display:
        if server is None:
            display.say("Airflow is not running.")
            return 3
        display.say(f"Airflow   {server.url}  user admin  password {server.password}")
        for run in _active_runs(server):
            display.say(f"run       {run['dag_id']}  {run['dag_run_id']}  {run['state']}")
    return 0


def _active_runs(server: Server) -> list[dict[str, str]]:
    try:
        return list(server.api.get("/dags/~/dagRuns", state=_RUNS, limit=100)["dag_runs"])
    except AirflowApiError:
        return []


def _fail_active_runs(server: Server) -> None:
    """So that the next start of Airflow does not go on with runs whose jobs are gone."""
    for run in _active_runs(server):
        try:
            server.api.patch(f"/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}", {"state": "failed"})
        except AirflowApiError:
            continue
