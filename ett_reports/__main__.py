"""`python -m ett_reports`: the metric on the command line."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import cast

from ett_reports.commands import COMMANDS, Command, CommandError
from ett_reports.reader import LogError
from ett_reports.report import ReportError
from ett_reports.timeline import TimelineError


def main(given: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 wrong input (one line on stderr says what and what would be right)."""
    parser = argparse.ArgumentParser(prog="python -m ett_reports", description="Effective training time (ETT%).")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands: dict[str, Command] = {}
    for module in COMMANDS:
        name = module.replace("_", "-")
        commands[name] = cast(Command, importlib.import_module(f"ett_reports.commands.{module}"))
        told = commands[name].HELP
        # argparse formats `help`, but not `description`.
        commands[name].add_arguments(subcommands.add_parser(name, help=told.replace("%", "%%"), description=told))
    arguments = parser.parse_args(given)
    try:
        return commands[arguments.command].execute(arguments)
    except (CommandError, LogError, TimelineError, ReportError) as error:
        print(f"ett_reports: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
