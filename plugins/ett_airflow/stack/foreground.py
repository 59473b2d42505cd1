"""Airflow's components in the foreground: what a container or a service unit runs, after `prepare` has run once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ett_airflow.stack.database import Database
from ett_airflow.stack.settings import REPOSITORY, Addresses, StackHome, airflow_environment


def prepare() -> int:
    """Draw the secrets, bring the database up to this version of Airflow, and create the pools that specs name."""
    command = [*_components(), "--prepare"]
    return subprocess.run(
        command, env=_environment(StackHome.default().create()), cwd=REPOSITORY, check=False
    ).returncode


def run(components: Sequence[str]) -> int:
    """Become the process above `components` (all if none is named); their output goes to this one's."""
    command = [*_components(), "--logs", "stdout"]
    for component in components:
        command += ["--only", component]
    environment = _environment(StackHome.default().create())
    os.chdir(REPOSITORY)
    os.execve(command[0], command, environment)


def _components() -> list[str]:
    return [sys.executable, "-m", "ett_airflow.stack.components"]


def _environment(stack: StackHome) -> dict[str, str]:
    return airflow_environment(stack, Addresses.configured(), Database.configured(stack.root), os.environ)
