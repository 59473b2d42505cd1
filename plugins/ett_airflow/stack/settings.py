"""Where the local Airflow lives and how it is set up: everything through its environment, nothing in a config file."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.atomic_file import replace_text
from trainer.run_folder import HOME_VARIABLE, home

REPOSITORY = Path(__file__).resolve().parents[3]
USUAL_PORT = 8080
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
    def database(self) -> Path:
        return self.root / "airflow.db"

    @property
    def migrated(self) -> Path:
        """Holds the version of Airflow that the database was last brought up to."""
        return self.root / "migrated"

    @property
    def logs(self) -> Path:
        return self.root / "components"


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


def airflow_environment(stack: StackHome, port: int, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of every Airflow process; `base` adds what the caller has, except other Airflow settings."""
    drawn = credentials(stack)
    url = f"http://127.0.0.1:{port}"
    reader = {
        "conn_type": "http",
        "host": "127.0.0.1",
        "port": port,
        "login": READER,
        "password": drawn.reader_password,
    }
    kept = {name: value for name, value in base.items() if not name.startswith("AIRFLOW")}
    kept[HOME_VARIABLE] = str(home())
    kept["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "plugins"), base.get("PYTHONPATH", "")])
    kept["NO_PROXY"] = kept["no_proxy"] = ",".join(filter(None, [base.get("NO_PROXY"), "127.0.0.1", "localhost"]))
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every task starts a Python; compiling each time doubles its start
    # Off unless asked for: a scheduled run that starts beside a triggered one would train a day out of turn.
    kept.setdefault("ETT_SCHEDULE", "off")
    kept["AIRFLOW_HOME"] = str(stack.root)
    kept["AIRFLOW_CONN_ETT_AIRFLOW_API"] = json.dumps(reader)
    return kept | _options(stack, port, url, drawn)


def _options(stack: StackHome, port: int, url: str, drawn: Credentials) -> dict[str, str]:
    sections: dict[str, dict[str, Any]] = {
        "core": {
            "dags_folder": os.environ.get("ETT_DAGS", REPOSITORY / "dags"),
            "plugins_folder": REPOSITORY / "plugins",
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": 4,  # idle workers are forked up front
            "fernet_key": drawn.fernet_key,
            "simple_auth_manager_users": f"{PERSON}:admin,{READER}:viewer",
            "simple_auth_manager_passwords_file": stack.passwords,
            "execution_api_server_url": f"{url}/execution/",
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{stack.database}"},
        "api": {"host": "127.0.0.1", "port": port, "base_url": url, "workers": 1, "secret_key": drawn.secret_key},
        "api_auth": {"jwt_secret": drawn.jwt_secret},
        "dag_processor": {"min_file_process_interval": 15, "refresh_interval": 60, "parsing_processes": 1},
        "scheduler": {
            "scheduler_idle_sleep_time": 0.5,
            "task_instance_heartbeat_timeout": 30,
            "task_instance_heartbeat_timeout_detection_interval": 5,
            "orphaned_tasks_check_interval": 15,
        },
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
