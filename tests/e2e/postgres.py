"""A Postgres server of the tests' own: a folder, a port of the loopback interface, no system service."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

NAME = USER = "airflow"
_START_S = 60
_PROGRAMS = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Postgres:
    """One server. Postgres refuses to run as root, so root starts it as Debian's user `postgres`."""

    folder: Path
    programs: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://{USER}:{self.password}@127.0.0.1:{self.port}/{NAME}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Returns when it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self.run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-t", _START_S, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """`fast` ends all connections in order; `immediate` is a crash, and the next start recovers."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """`kill -9` of the whole server."""
        leader = psutil.Process(self.pid)
        processes = [leader.pid, *(child.pid for child in leader.children())]
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(_runs(pid) for pid in processes):
            assert time.monotonic() < end, "postgres does not die"
            time.sleep(0.05)
        # They name a process that is dead, but where nobody collects orphans is still there as a zombie.
        for lock in (self.data / "postmaster.pid", self.folder / f".s.PGSQL.{self.port}.lock"):
            lock.unlink()

    def query(self, sql: str) -> list[list[str]]:
        """Rows as text."""
        environment = {"PGPASSWORD": self.password, "PATH": os.environ["PATH"]}
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", NAME, "-AtF", "\t", "-c", sql]
        answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [line.split("\t") for line in answer.stdout.splitlines()]

    def run(self, program: str, *arguments: object) -> None:
        command = [str(self.programs / program), *map(str, arguments)]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        done = subprocess.run(
            command, cwd=self.folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{program}: {done.stdout}\n{self.log()}"

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""


def is_installed() -> bool:
    """Whether Debian's package `postgresql` is there; `.ci/run` installs it."""
    return any(_PROGRAMS.glob("*/bin/initdb"))


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A running server with one empty database; gone afterwards, folder and all."""
    programs = max(_PROGRAMS.glob("*/bin"))
    # Not below pytest's folder, which is for its owner alone: the server may be another user.
    folder = Path(tempfile.mkdtemp(prefix="ett-postgres-"))
    server = Postgres(folder, programs, _free_port(), secrets.token_urlsafe(12))
    try:
        _initialize(server)
        server.start()
        server.run("createdb", "-h", folder, "-p", server.port, "-U", USER, NAME)
        yield server
    finally:
        if (server.data / "postmaster.pid").exists() and _runs(server.pid):
            server.stop("immediate")
        shutil.rmtree(folder)


def _initialize(server: Postgres) -> None:
    password_file = server.folder / "password"
    password_file.write_text(server.password)
    if os.geteuid() == 0:
        postgres = pwd.getpwnam("postgres")
        os.chown(server.folder, postgres.pw_uid, postgres.pw_gid)
        os.chown(password_file, postgres.pw_uid, postgres.pw_gid)
    options = ["--auth-host=scram-sha-256", "--auth-local=trust", "--no-sync", "--locale=C.UTF-8"]
    server.run("initdb", "-D", server.data, "-U", USER, f"--pwfile={password_file}", *options)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
