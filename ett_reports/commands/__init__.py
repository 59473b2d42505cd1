"""The subcommands of `python -m ett_reports`. A command is a module here, named in COMMANDS, with HELP, add_arguments
and execute."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Protocol


class CommandError(Exception):
    """Wrong input to a command: printed as one line, exit code 2."""


class Command(Protocol):
    """What a command module offers."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def execute(self, arguments: Namespace) -> int:
        """Returns the exit code; raises CommandError, LogError, TimelineError or ReportError for wrong input."""
        ...


COMMANDS: tuple[str, ...] = ("run", "watch", "compare", "whatif", "interval", "validate")
"""Module names; `watch_live` would be the subcommand `watch-live`."""
