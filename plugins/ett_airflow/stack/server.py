"""The local Airflow as seen from outside: start it, find it, wait for it, end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.stack.database import Database
from ett_airflow.stack.settings import (
    PERSON,
    REPOSITORY,
    USUAL_PORT,
    Addresses,
    StackHome,
    airflow_environment,
    credentials,
    free_port,
)
from trainer.atomic_file import replace_text

START_TIMEOUT_S = 180.0
_STATE_VERSION = 1


class StackError(RuntimeError):
    """The local Airflow is not as it should be; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running local Airflow. `session` is its leader's process id, and the id of its session."""

    stack: StackHome
    session: int
    port: int
    started: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        return credentials(self.stack).password

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.url, PERSON, self.password)


def running_server(stack: StackHome) -> Server | None:
    """The Airflow that runs in `stack` now, None if there is none; a stale record of a dead one is removed."""
    try:
        state = json.loads(stack.state.read_text(encoding="utf-8"))
        server = Server(stack=stack, session=state["session"], port=state["port"], started=state["started"])
    except (OSError, ValueError, KeyError):
        return None
    if _session_of(server.session) == server.session:
        return server
    stack.state.unlink(missing_ok=True)
    return None


def start_server(stack: StackHome, *, owner: int | None) -> Server:
    """Start Airflow in a session of its own; it ends by itself when process `owner` is gone.

    Returns at once: `wait_healthy` waits.

    Raises:
        StackError: one runs already.
        DatabaseError: `$ETT_DATABASE_URL` is not understood.
    """
    if (found := running_server(stack)) is not None:
        raise StackError(f"Airflow already runs at {found.url}; `make down` stops it")
    database = Database.configured(stack.root)
    stack.create()
    port = free_port(int(os.environ.get("ETT_API_PORT") or USUAL_PORT))
    command = [sys.executable, "-m", "ett_airflow.stack.components", "--alone"]
    if owner is not None:
        command += ["--owner", str(owner)]
    with (stack.logs / "components.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=airflow_environment(stack, Addresses.on_this_machine(port), database, os.environ),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(stack=stack, session=process.pid, port=port, started=time.time())
    record = {"version": _STATE_VERSION, "session": server.session, "port": port, "started": server.started}
    replace_text(stack.state, json.dumps(record))
    return server


def wait_healthy(server: Server, *, tick: Callable[[], None] = lambda: None) -> None:
    """Wait until all components say that they are well.

    Raises:
        StackError: they died, or took longer than three minutes.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        tick()
        _collect_child(server.session)
        if _session_of(server.session) is None:
            raise StackError(f"Airflow ended while it started:\n{_log_tail(server.stack)}")
        if _is_healthy(server):
            _warm_up(server)
            return
        time.sleep(0.3)
    raise StackError(f"Airflow did not come up within {START_TIMEOUT_S:.0f} s; its logs are in {server.stack.logs}")


def stop_server(server: Server) -> None:
    """End every process of the server's session: INT, then TERM, then KILL. Its jobs go on."""
    end_session(server.session)
    _collect_child(server.session)
    server.stack.state.unlink(missing_ok=True)


def take_down(server: Server) -> None:
    """Stop the server, and then every job: Airflow would submit the next attempt of a job cancelled under it."""
    stop_server(server)
    cancel_jobs()


def end_session(session: int) -> None:
    """End all processes of a session (the caller excepted), whatever they do with signals."""
    for number, patience_s in ((signal.SIGINT, 8.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in members(session):
            _signal(pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            _collect_child(session)
            if not members(session):
                return
            time.sleep(0.1)


def members(session: int) -> list[int]:
    """Living processes of a session, except the caller."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _session_of(pid) == session]


def cancel_jobs() -> None:
    """End every local training, check or publish job, and wait until none is left."""
    subprocess.run(
        [sys.executable, "-m", "trainer.launch", "cancel", "--all"],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        check=False,
    )


@contextmanager
def held(path: Path, otherwise: str) -> Iterator[None]:
    """Hold an exclusive lock on `path` for the duration.

    Raises:
        StackError: another process holds it; the message is `otherwise`.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(otherwise) from None
        yield


def _is_healthy(server: Server) -> bool:
    api = server.api
    parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    try:
        health = api.health()
        # Of two stacks that took the same free port at once, one talks to the other's server, which does not know it.
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts) and bool(api.token)
    except AirflowApiError:
        return False


def _warm_up(server: Server) -> None:
    """Have the API that tasks speak to built now: it takes seconds, which the first task would stand waiting."""
    with suppress(AirflowApiError):
        AirflowApi(server.url, "", "", timeout_s=60).execution_health()


def _session_of(pid: int) -> int | None:
    """The session of a living process; None for a dead one, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[3])


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _collect_child(pid: int) -> None:
    """Reap the session's leader if it is our child, so that it does not stay as a zombie."""
    with suppress(OSError):  # not our child
        os.waitpid(pid, os.WNOHANG)


def _log_tail(stack: StackHome) -> str:
    try:
        lines = (stack.logs / "components.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(lines[-15:])
