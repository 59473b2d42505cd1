"""A warm Airflow on a Postgres of its own, for benchmarks of the control plane."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from ett_airflow.airflow_api import AirflowApi
from ett_airflow.stack.server import Server, members, start_server, take_down, wait_healthy
from ett_airflow.stack.settings import StackHome, free_port

from tests.e2e.postgres import Postgres, postgres_server


@dataclass(frozen=True)
class WarmAirflow:
    """It is healthy; `home` is its `$ETT_HOME`."""

    server: Server
    postgres: Postgres
    home: Path

    @property
    def api(self) -> AirflowApi:
        return self.server.api

    def memory_of(self, component: str) -> float:
        """MiB that a component and its children hold of their own (unique set size): shared pages count for nobody."""
        leader = psutil.Process(int((self.server.stack.logs / f"{component}.pid").read_text()))
        processes = [leader, *leader.children(recursive=True)]
        return sum(_unique_bytes(process) for process in processes) / 2**20

    def processes(self) -> int:
        return len(members(self.server.session))


@contextmanager
def warm_airflow(variables: Mapping[str, str]) -> Iterator[WarmAirflow]:
    """Airflow with `variables` set, in a temporary home; all of it is gone afterwards."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder, postgres_server() as postgres:
        os.environ.update({**variables, "ETT_HOME": folder, "ETT_DATABASE_URL": postgres.url})
        os.environ["ETT_API_PORT"] = str(free_port(0))
        server = start_server(StackHome.default(), owner=os.getpid())
        try:
            wait_healthy(server)
            yield WarmAirflow(server, postgres, Path(folder))
        finally:
            take_down(server)
            os.environ.clear()
            os.environ.update(before)


def _unique_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0
