"""One real Airflow for all tests of a session, and refreshes triggered, watched and hurt in it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.postgres import Postgres, is_installed, postgres_server
from tests.own_home import at_home

REPOSITORY = Path(__file__).parents[2]
SPECS = Path(__file__).parent / "refreshes"
DAGS = Path(__file__).parent / "dags"
JOB_MODULES = REPOSITORY / "tests" / "plugins" / "modules"
NEWEST = date(2026, 11, 28)
DAYS = 6
ROWS_PER_DAY = 40_000
PATIENCE_S = 420.0


@dataclass
class Refresh:
    """One run of DAG `dag`."""

    airflow: RealAirflow
    run_id: str
    dag: str = "tiny"

    @property
    def folder(self) -> Any:
        from trainer.run_folder import RunFolder

        return RunFolder.of(self.dag, self.run_id)

    @property
    def state(self) -> str:
        return str(self.airflow.api.dag_run(self.dag, self.run_id)["state"])

    def tasks(self) -> dict[str, str | None]:
        found = self.airflow.api.task_instances(self.dag, self.run_id)
        return {each["task_id"]: each["state"] for each in found}

    def until(self, condition: Callable[[], object], complaint: str) -> None:
        wait_until(condition, lambda: f"{complaint}; tasks: {self.tasks()}")

    def ended(self) -> str:
        self.until(lambda: self.state in ("success", "failed"), "the run does not end")
        return self.state

    def stop(self) -> None:
        """Leave nothing of it to the next test: one run at a time is active."""
        if self.state not in ("success", "failed"):
            self.airflow.api.patch(f"/dags/{self.dag}/dagRuns/{self.run_id}", {"state": "failed"})
        self.until(lambda: all(status.terminal for status in self.attempts()), "its jobs do not end")

    def attempts(self, task: str = "train") -> list[Any]:
        """The status of each job of a task, by attempt."""
        from trainer.launch import JobKey, launcher_for

        launcher = launcher_for("local")
        found, number = [], 1
        while handle := launcher.find(JobKey(refresh=self.dag, run=self.run_id, task=task, attempt=number)):
            found.append(launcher.describe(handle))
            number += 1
        return found

    def trained_rows(self) -> int:
        """The cursor by now."""
        from ett_airflow.stack.following import Follower

        samples = Follower(self.airflow.api, self.dag, self.run_id, self.folder)._samples()
        return samples.done if samples else 0

    def train_a_while(self) -> None:
        self.until(lambda: self.trained_rows() > 3000, "training does not get going")

    def task_processes(self, task: str, try_number: int) -> list[int]:
        """Process ids of the task's own processes, from their event folders."""
        found = self.folder.events_dir.glob(f"airflow-{task}-t{try_number}-*")
        return [int(path.name.rpartition("-")[2]) for path in found]

    def message(self, task: str) -> str:
        from ett_airflow.outcome import last_messages

        from ett_reports.reader import read_log

        return last_messages(read_log(self.folder.events_dir))[task]

    def report(self) -> Any:
        from ett_reports.document import read_document

        return read_document(self.folder.root)


@dataclass
class RealAirflow:
    """The stack of `make up`, under a home of its own."""

    server: Any
    home: Path
    specs: Path
    postgres: Postgres | None

    @functools.cached_property
    def api(self) -> Any:
        return self.server.api

    def component(self, name: str) -> int:
        return int((self.server.stack.logs / f"{name}.pid").read_text())

    def trigger(self, run_id: str, **params: Any) -> Refresh:
        self.api.post("/dags/tiny/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": params})
        return Refresh(self, run_id)

    def clear(self, refresh: Refresh, task: str) -> None:
        body = {"dry_run": False, "dag_run_id": refresh.run_id, "task_ids": [task], "only_failed": False}
        self.api.post("/dags/tiny/clearTaskInstances", {**body, "include_downstream": True})

    def mark_failed(self, refresh: Refresh, task: str) -> None:
        self.api.patch(f"/dags/tiny/dagRuns/{refresh.run_id}/taskInstances/{task}", {"new_state": "failed"})


def wait_until(condition: Callable[[], object], complaint: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not _holds(condition):
        assert time.monotonic() < end, complaint()
        time.sleep(0.1)


def _holds(condition: Callable[[], object]) -> object:
    """An API server that is slow to answer, on a busy machine, has not answered yet."""
    from ett_airflow.airflow_api import AirflowApiError

    try:
        return condition()
    except AirflowApiError as error:
        if error.status is not None:
            raise
        return False


def land(home: Path, spec: Path = SPECS / "tiny.yaml", days: int = DAYS) -> None:
    command = [sys.executable, "-m", "trainer.dpp.generate", str(spec), "--days", str(days)]
    command += ["--rows-per-day", str(ROWS_PER_DAY), "--newest", NEWEST.isoformat()]
    environment = {**os.environ, "ETT_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def processes_of(home: Path) -> list[str]:
    """Every living process that knows of this home, but for the ones that pytest itself has for `multiprocessing`."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            ours = process.ppid() == os.getpid() and any("multiprocessing" in argument for argument in command)
            if command and process.pid != os.getpid() and process.environ().get("ETT_HOME") == str(home) and not ours:
                found.append(f"{process.pid} {' '.join(command)}")
        except psutil.Error:
            continue
    return found


def day(back: int) -> str:
    """`back` days before the newest landed one, as a Param."""
    return (NEWEST - timedelta(days=back)).isoformat()


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAirflow]:
    from ett_airflow.stack.server import start_server, take_down, wait_healthy
    from ett_airflow.stack.settings import StackHome, free_port

    home = tmp_path_factory.mktemp("ett")
    specs = home / "refreshes"
    shutil.copytree(SPECS, specs)
    shutil.copytree(JOB_MODULES, home / "modules")
    stack = ExitStack()
    postgres = stack.enter_context(postgres_server()) if is_installed() else None
    # For the server alone: another stack that a test starts has its own specs, and above all its own database.
    with at_home(home), pytest.MonkeyPatch.context() as starting:
        starting.setenv("ETT_SPECS", str(specs))
        starting.setenv("ETT_API_PORT", str(free_port(0)))  # the usual one may be somebody else's in a moment
        starting.setenv("ETT_DAGS", str(with_test_dags(home)))
        paths = [str(home / "modules"), os.environ.get("PYTHONPATH")]
        starting.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        if postgres is not None:
            starting.setenv("ETT_DATABASE_URL", postgres.url)
        server = start_server(StackHome.default(), owner=os.getpid())
    try:
        land(home)
        wait_healthy(server)
        wait_until(lambda: _parsed(server.api), lambda: f"no DAG: {server.api.get('/importErrors')}")
        server.api.patch("/dags/tiny", {"is_paused": False})
        yield RealAirflow(server, home, specs, postgres)
    finally:
        with at_home(home):
            take_down(server)
        stack.close()
        left = processes_of(home)
        assert not left, left


@pytest.fixture(autouse=True)
def at_airflow(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test in the session's Airflow is at home there; the next test, of another kind, is not."""
    with at_home(request.getfixturevalue("airflow").home) if "airflow" in request.fixturenames else nullcontext():
        yield


def with_test_dags(home: Path) -> Path:
    """A folder with the repository's DAG files, and those of the tests with their specs."""
    folder = home / "dags"
    folder.mkdir()
    for file in (*(REPOSITORY / "dags").glob("*.py"), *DAGS.glob("*.py")):
        shutil.copy(file, folder)
    specs = home / "cases"
    specs.mkdir()
    tiny = (SPECS / "tiny.yaml").read_text().replace("train: 3,", "train: 1,").replace("delay_s: 2", "delay_s: 1")
    (specs / "cases.yaml").write_text(tiny.replace("name: tiny", "name: cases").replace('"0 3 * * *"', "none"))
    dated = tiny.replace("name: tiny", "name: dated").replace("root: tiny", "root: dated\n  landing_wait_s: 0")
    dated = dated.replace('"0 3 * * *"', '"0 0 * * *"\non_assets: [landing]\nfreshness_deadline_s: 1')
    (specs / "dated.yaml").write_text(dated)
    return folder


def _parsed(api: Any) -> bool:
    return any(dag["dag_id"] == "tiny" for dag in api.get("/dags")["dags"])


@pytest.fixture
def refresh(airflow: RealAirflow) -> Iterator[Callable[..., Refresh]]:
    """Triggers a run and makes sure that it does not outlive its test."""
    started: list[Refresh] = []

    def start(run_id: str, **params: Any) -> Refresh:
        started.append(airflow.trigger(run_id, **params))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
