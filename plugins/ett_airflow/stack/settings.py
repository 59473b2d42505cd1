"""Where the local Airflow lives and how it is set up: everything through its environment, nothing in a config file."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett_airflow.stack.database import DATABASE_VARIABLE, Database
from trainer.atomic_file import replace_text
from trainer.run_folder import HOME_VARIABLE, home

REPOSITORY = Path(__file__).resolve().parents[3]
USUAL_PORT = 8080
PUBLIC_URL_VARIABLE = "ETT_PUBLIC_URL"
PERSON, READER = "admin", "ett_reader"


@dataclass(frozen=True)
class StackHome:
    """The files of one local Airflow, below `$ETT_HOME/airflow`."""

    root: Path

    @classmethod
    def default(cls) -> StackHome:
        return cls(home() / "airflow")

    def create(self) -> StackHome:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        self.logs.mkdir(exist_ok=True)
        return self

    @property
    def state(self) -> Path:
        return self.root / "stack.json"

    @property
    def server_lock(self) -> Path:
        return self.root / "server.lock"

    @property
    def refresh_lock(self) -> Path:
        return self.root / "refresh.lock"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def passwords(self) -> Path:
        return self.root / "passwords.json"

    @property
    def migrated(self) -> Path:
        """Holds the version of Airflow that the database was last brought up to."""
        return self.root / "migrated"

    @property
    def logs(self) -> Path:
        return self.root / "components"


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the API server listens, where the other components reach it, and where people do (links in alerts)."""

    host: str
    port: int
    url: str
    public_url: str

    @classmethod
    def on_this_machine(cls, port: int) -> Addresses:
        """The loopback interface only."""
        url = f"http://127.0.0.1:{port}"
        return cls(host="127.0.0.1", port=port, url=url, public_url=os.environ.get(PUBLIC_URL_VARIABLE) or url)

    @classmethod
    def configured(cls) -> Addresses:
        """From `$ETT_API_HOST`, `$ETT_API_PORT`, `$ETT_API_URL` and `$ETT_PUBLIC_URL`; loopback where unset."""
        host = os.environ.get("ETT_API_HOST") or "127.0.0.1"
        port = int(os.environ.get("ETT_API_PORT") or USUAL_PORT)
        url = (os.environ.get("ETT_API_URL") or f"http://127.0.0.1:{port}").rstrip("/")
        return cls(host=host, port=port, url=url, public_url=os.environ.get(PUBLIC_URL_VARIABLE) or url)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What was drawn once for this machine."""

    password: str
    reader_password: str
    secret_key: str
    jwt_secret: str
    fernet_key: str


def credentials(stack: StackHome) -> Credentials:
    """The stack's secrets, drawn at first use and kept readable by their owner alone."""
    if not stack.secrets.exists():
        drawn = Credentials(
            password=secrets.token_urlsafe(12),
            reader_password=secrets.token_urlsafe(24),
            secret_key=secrets.token_urlsafe(32),
            jwt_secret=secrets.token_urlsafe(64),
            fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        )
        _write_private(stack.secrets, drawn.__dict__)
    kept = Credentials(**json.loads(stack.secrets.read_text(encoding="utf-8")))
    _write_private(stack.passwords, {PERSON: kept.password, READER: kept.reader_password})
    return kept


def free_port(preferred: int = USUAL_PORT) -> int:
    """`preferred`, or any free port of the loopback interface when it is taken."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def specs_folder() -> Path:
    """Where `dags/refresh.py` finds the specs."""
    return Path(os.environ.get("ETT_SPECS") or Path(os.environ.get("ETT_DAGS") or REPOSITORY / "dags") / "refreshes")


def airflow_environment(
    stack: StackHome, addresses: Addresses, database: Database, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment of every Airflow process; `base` adds what the caller has, except other Airflow settings."""
    drawn = credentials(stack)
    api = urllib.parse.urlsplit(addresses.url)
    reader = {
        "conn_type": api.scheme,
        "host": api.hostname,
        "port": api.port or (443 if api.scheme == "https" else 80),
        "login": READER,
        "password": drawn.reader_password,
    }
    # The database's address goes to Airflow alone: jobs get none of its settings, but they would get this one.
    kept = {name: value for name, value in base.items() if not name.startswith(("AIRFLOW", DATABASE_VARIABLE))}
    kept[HOME_VARIABLE] = str(home())
    kept["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "plugins"), base.get("PYTHONPATH", "")])
    direct = [base.get("NO_PROXY"), "127.0.0.1", "localhost", api.hostname]
    kept["NO_PROXY"] = kept["no_proxy"] = ",".join(dict.fromkeys(filter(None, direct)))
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every task starts a Python; compiling each time doubles its start
    # Off unless asked for: a scheduled run that starts beside a triggered one would train a day out of turn.
    kept.setdefault("ETT_SCHEDULE", "off")
    kept["AIRFLOW_HOME"] = str(stack.root)
    kept["AIRFLOW_CONN_ETT_AIRFLOW_API"] = json.dumps(reader)
    return kept | _options(stack, addresses, database, drawn)


def _options(stack: StackHome, addresses: Addresses, database: Database, drawn: Credentials) -> dict[str, str]:
    sections: dict[str, dict[str, Any]] = {
        "core": {
            "dags_folder": os.environ.get("ETT_DAGS", REPOSITORY / "dags"),
            "plugins_folder": REPOSITORY / "plugins",
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": os.environ.get("ETT_PARALLELISM") or 4,  # idle workers are forked up front
            "fernet_key": drawn.fernet_key,
            "simple_auth_manager_users": f"{PERSON}:admin,{READER}:viewer",
            "simple_auth_manager_passwords_file": stack.passwords,
            "execution_api_server_url": f"{addresses.url}/execution/",
        },
        "database": {"sql_alchemy_conn": database.url, **database.options()},
        "api": {
            "host": addresses.host,
            "port": addresses.port,
            "base_url": addresses.public_url,
            "workers": 1,
            "secret_key": drawn.secret_key,
        },
        "api_auth": {"jwt_secret": drawn.jwt_secret},
        "dag_processor": {"min_file_process_interval": 15, "refresh_interval": 60, "parsing_processes": 1},
        "scheduler": {
            "scheduler_idle_sleep_time": 0.5,
            "task_instance_heartbeat_timeout": 30,
            "task_instance_heartbeat_timeout_detection_interval": 5,
            "orphaned_tasks_check_interval": 15,
        },
        # The end of a task's process is noticed this late, and no deferral may be shorter (`follow.SHORTEST_S`).
        "workers": {"min_heartbeat_interval": 1},
        # A dead triggerer's triggers are taken over this soon.
        "triggerer": {"job_heartbeat_sec": 2, "triggerer_health_check_threshold": 10},
        "usage_data_collection": {"enabled": False},
    }
    return {
        f"AIRFLOW__{section.upper()}__{name.upper()}": str(value)
        for section, options in sections.items()
        for name, value in options.items()
    }


def _write_private(path: Path, content: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(dict(content)), mode=0o600)
