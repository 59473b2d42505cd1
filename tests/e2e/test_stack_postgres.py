"""Airflow on Postgres: its components in processes of their own, as containers run them; one Airflow to a database."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.stack.settings import PERSON, free_port

from tests.e2e.conftest import REPOSITORY, SPECS, processes_of, wait_until
from tests.e2e.postgres import Postgres, is_installed, postgres_server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="Debian's postgresql is not installed; .ci/run installs it"),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def environment(tmp_path: Path, postgres: Postgres) -> dict[str, str]:
    specs = tmp_path / "specs"
    specs.mkdir()
    text = (SPECS / "tiny.yaml").read_text()
    (specs / "tiny.yaml").write_text(text.replace("resources: {", "resources: {pool: gpu-a, "))
    return {
        **os.environ,
        "ETT_HOME": str(tmp_path / "home"),
        "ETT_SPECS": str(specs),
        "ETT_DATABASE_URL": postgres.url,
        "ETT_API_PORT": str(free_port(0)),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
    }


@dataclass
class Command:
    """`python -m ett_airflow.stack ...` while it runs; its output goes to a file, since nobody reads it meanwhile."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, environment: dict[str, str], *arguments: str) -> Command:
        log = Path(environment["ETT_SPECS"]).parent / f"{'-'.join(arguments)}.log"
        command = [sys.executable, "-m", "ett_airflow.stack", *arguments]
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        return cls(process, log)

    def ended(self) -> tuple[int, str]:
        return self.process.wait(300), self.log.read_text()


def test_a_wrong_password_is_told_at_once_and_not_repeated(environment: dict[str, str], postgres: Postgres) -> None:
    wrong = postgres.url.replace(postgres.password, "wr0ng")
    status, output = Command.start({**environment, "ETT_DATABASE_URL": wrong}, "prepare").ended()
    assert status == 1, output
    assert "password authentication failed" in output
    assert "airflow:***@127.0.0.1" in output
    assert "wr0ng" not in output


def test_components_apart_find_each_other_and_end_when_told(environment: dict[str, str], postgres: Postgres) -> None:
    """`prepare`, then the API server and the rest side by side, as docker/compose.yaml has them."""
    status, output = Command.start(environment, "prepare").ended()
    assert status == 0, output
    assert ["gpu-a", "4", "t"] in postgres.query("SELECT pool, slots, include_deferred FROM slot_pool")
    running = [
        Command.start(environment, "run", "api-server", "dag-processor"),
        Command.start(environment, "run", "scheduler", "triggerer"),
    ]
    try:
        status, password = Command.start(environment, "password").ended()
        assert status == 0, password
        api = AirflowApi(f"http://127.0.0.1:{environment['ETT_API_PORT']}", PERSON, password.strip())
        wait_until(lambda: _healthy(api), lambda: "the components do not find each other")
        wait_until(lambda: "tiny" in str(api.get("/dags")["dags"]), lambda: str(api.get("/importErrors")))
        pools = {task["task_id"]: task["pool"] for task in api.get("/dags/tiny/tasks")["tasks"]}
        assert pools["launch"] == pools["train"] == "gpu-a"
        assert pools["publish"] == "default_pool"
    finally:
        for command in running:
            command.process.send_signal(signal.SIGTERM)
        ends = [command.ended() for command in running]
    assert [status for status, _ in ends] == [0, 0], ends
    home = Path(environment["ETT_HOME"])
    wait_until(lambda: not processes_of(home), lambda: str(processes_of(home)), patience_s=30)


def test_a_second_airflow_on_the_same_database_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    """They would take each other's runs; one that was killed without warning keeps nobody out."""
    other_home = tmp_path / "other"
    other = {**environment, "ETT_HOME": str(other_home), "ETT_API_PORT": str(free_port(0))}
    try:
        status, output = Command.start(environment, "up").ended()
        assert status == 0, output
        status, output = Command.start(other, "up").ended()
        assert status == 1, output
        assert re.search(r"another Airflow works on postgresql\S*airflow:\*\*\*@\S*: scheduler \d+ on", output)
        assert not processes_of(other_home)
        status, output = Command.start(environment, "status").ended()
        assert status == 0, output
        state = json.loads((Path(environment["ETT_HOME"]) / "airflow" / "stack.json").read_text())
        os.killpg(state["session"], signal.SIGKILL)
        status, output = Command.start(other, "up").ended()
        assert status == 0, output
    finally:
        for each in (environment, other):
            Command.start(each, "down").ended()
    for each in (environment, other):
        wait_until(lambda home=Path(each["ETT_HOME"]): not processes_of(home), lambda: "processes are left", 30)


def _healthy(api: AirflowApi) -> bool:
    try:
        health = api.health()
    except AirflowApiError:
        return False
    return all((health[part] or {}).get("status") == "healthy" for part in ("scheduler", "triggerer", "dag_processor"))
