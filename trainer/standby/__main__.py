"""`python -m trainer.standby FOLDER OPTIONS_AS_JSON`: become the standby of a $ETT_HOME; supervisors start it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path

from trainer.standby.environment_area import ROOM_VARIABLE
from trainer.standby.place import StandbyPlace
from trainer.standby.server import StandbyOptions, StandbyServer

_HANDLED = (signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Leaves the process tree of whoever called, then serves. Exit 0."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in _HANDLED:  # of a terminal, which are not for us
        signal.signal(number, signal.SIG_IGN)
    os.environ.pop(ROOM_VARIABLE, None)
    _log_apart()
    fields = json.loads(arguments[1])
    options = StandbyOptions(**{**fields, "modules": tuple(fields["modules"])})
    StandbyServer(StandbyPlace(Path(arguments[0])), options).run()
    return 0


def _log_apart() -> None:
    """Not by the root's handlers: ranks are forked from here, and theirs are to be as of a new process."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    ours = logging.getLogger("trainer.standby")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
