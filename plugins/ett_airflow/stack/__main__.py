"""`python -m ett_airflow.stack COMMAND`: what `make` calls, and what containers run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ett_airflow.airflow_api import AirflowApiError
from ett_airflow.stack.database import DatabaseError
from ett_airflow.stack.server import StackError
from ett_airflow.stack.settings import REPOSITORY
from trainer.spec import SpecError

DEFAULT_SPEC = REPOSITORY / "dags" / "refreshes" / "completejourney.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 for success, 1 for a red run or an error, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (StackError, DatabaseError, SpecError, AirflowApiError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.command == "refresh":
        from ett_airflow.stack.refresh import refresh

        return refresh(options.spec.resolve(), dict(options.param))
    if options.command == "screenshot":
        from ett_airflow.stack.screenshot import screenshot

        return screenshot(options.dag, options.run, options.out)
    if options.command == "prepare":
        from ett_airflow.stack.foreground import prepare

        return prepare()
    if options.command == "password":
        from ett_airflow.stack.settings import StackHome, credentials

        print(credentials(StackHome.default()).password)
        return 0
    if options.command == "run":
        from ett_airflow.stack.foreground import run

        return run(options.component)
    from ett_airflow.stack import lifecycle

    commands = {"up": lifecycle.up, "down": lifecycle.down, "status": lifecycle.status}
    return commands[options.command]()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ett_airflow.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    refresh = commands.add_parser("refresh", help="train the next day by real Airflow, and report")
    refresh.add_argument("--spec", type=Path, default=DEFAULT_SPEC)
    refresh.add_argument(
        "--param",
        type=_param,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Param of the run, as JSON or text",
    )
    commands.add_parser("up", help="start Airflow and leave it running")
    commands.add_parser("down", help="stop Airflow and every job")
    commands.add_parser("status", help="what is running")
    commands.add_parser("prepare", help="draw the secrets, migrate the database, create missing pools; then end")
    commands.add_parser("password", help="of user admin")
    running = commands.add_parser("run", help="components of Airflow in the foreground, as containers run them")
    running.add_argument("component", nargs="*", help="which ones; all if none is named")
    picture = commands.add_parser("screenshot", help="pictures of a run in Airflow's UI and of its report")
    picture.add_argument("--dag", required=True)
    picture.add_argument("--run", required=True)
    picture.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    return parser


def _param(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
