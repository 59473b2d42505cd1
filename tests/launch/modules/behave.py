"""A job for tests: `python -m behave RANK:ACTION[:ARGUMENT] ...`, actions in order, `*` for every rank."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])


def mark(path: str) -> None:
    """One line for each time that this is run."""
    with Path(path).open("a") as file:
        file.write(f"{RANK} {os.getpid()}\n")


def say(text: str) -> None:
    print(text)
    print(f"{text} on stderr", file=sys.stderr)


def leave(code: str) -> None:
    sys.exit(int(code))


def die(number: str) -> None:
    os.kill(os.getpid(), int(number))


def explain(text: str) -> None:
    content = {"message": text, "details": {"rank": RANK}}
    Path(os.environ["ETT_ERROR_FILE"]).write_text(json.dumps(content))


def save_on_term(seconds: str) -> None:
    """As a trainer does: SIGTERM -> save -> exit 75."""

    def save(*_: object) -> None:
        time.sleep(float(seconds))
        os._exit(75)

    signal.signal(signal.SIGTERM, save)


def ignore_term(_: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def stacks(_: str) -> None:
    """As a trainer does: SIGUSR1 -> the stacks of all threads."""
    faulthandler.register(signal.SIGUSR1)


def hold_the_interpreter(_: str) -> None:
    """One call into C that never lets another thread run."""
    re.match("(a+)+b", "a" * 64)


def spawn_daemon(left: str) -> None:
    """A helper that loses its parent, and leaves the rank's "session", its "environment" or "both" behind."""
    command = "exec sleep 301" if left == "environment" else "exec setsid sleep 301"
    environment = dict(os.environ) if left == "session" else {"PATH": os.environ["PATH"]}
    subprocess.run(["/bin/sh", "-c", f"({command}) & exit 0"], env=environment, stdout=subprocess.DEVNULL, check=True)


def beat(seconds: str) -> None:
    """Signs of life for a while, then none."""
    from ett_reports.events import ProcessIdentity, Source
    from ett_reports.recorder import Recorder

    attempt = int(os.environ["ETT_ATTEMPT"])
    identity = ProcessIdentity(
        job="refresh/run", source=Source.TRAINER, process=f"trainer-a{attempt}-r{RANK}", attempt=attempt, rank=RANK
    )
    recorder = Recorder(Path(os.environ["ETT_EVENTS_DIR"]), identity)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        recorder.heartbeat()
        time.sleep(0.05)


def show_environment(path: str) -> None:
    Path(f"{path}.{RANK}").write_text(json.dumps({**os.environ, "cwd": str(Path.cwd())}))


def show_process(path: str) -> None:
    """What a process has from its start, besides its environment."""
    shown = dict(entry.split("=", 1) for entry in Path("/proc/self/environ").read_text().split("\0") if entry)
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        handler = signal.getsignal(number)
        handlers[number.name] = (
            handler.__name__ if callable(handler) and not isinstance(handler, int) else str(int(handler))
        )
    found = {
        "shown_environment": shown,
        "pid": os.getpid(),
        "session": os.getsid(0),
        "files": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists()),
        "handlers": handlers,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "module": __name__,
        "argv0": Path(sys.argv[0]).name,
        "path0": sys.path[0],
        "root_handlers": len(logging.root.handlers),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
    Path(f"{path}.{RANK}").write_text(json.dumps(found))


def fail(text: str) -> None:
    raise RuntimeError(text)


ACTIONS = {
    "process": show_process,
    "raise": fail,
    "leave_with_text": sys.exit,
    "mark": mark,
    "say": say,
    "exit": leave,
    "die": die,
    "explain": explain,
    "save_on_term": save_on_term,
    "ignore_term": ignore_term,
    "spawn_daemon": spawn_daemon,
    "beat": beat,
    "environment": show_environment,
    "stacks": stacks,
    "hold_the_interpreter": hold_the_interpreter,
    "sleep": lambda seconds: time.sleep(float(seconds)),
}

for step in sys.argv[1:]:
    rank, action, argument = f"{step}::".split(":", 2)
    if rank in ("*", str(RANK)):
        ACTIONS[action](argument.rstrip(":"))
