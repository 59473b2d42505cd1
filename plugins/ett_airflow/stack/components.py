"""The process above Airflow's components: forks them from one warm parent, restarts what dies, ends with its owner.

`server.py` starts `python -m ett_airflow.stack.components` in a session of its own; `foreground.py` becomes it.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ett_airflow.stack.database import Database, DatabaseError
from ett_airflow.stack.pools import create_missing_pools, pools_of
from ett_airflow.stack.settings import StackHome, specs_folder
from trainer.atomic_file import replace_text

# Logs are read from disk on one machine; the log servers would listen on every interface.
COMPONENTS = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
_STARTING_S = 60.0
_STARTS_TO_TRY = 5
_LONGEST_WAIT_S = 15.0
_STOPPING_S = 15.0


@dataclass
class Crew:
    """The forked components by process id."""

    stack: StackHome
    logs: Callable[[str], Path | None]
    running: dict[int, str] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    deaths: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    began: float = field(default_factory=time.monotonic)
    stopping: bool = False
    failed: bool = False

    @property
    def at_work(self) -> bool:
        return bool(self.running or self.waiting)

    def start(self, component: str) -> None:
        """Fork one component out of this process, which has all of Airflow imported already."""
        pid = os.fork()
        if pid == 0:
            _become(component, self.logs(component))
        self.running[pid] = component
        # For people (and tests) who want to look at, or kill, one of them.
        replace_text(self.stack.logs / f"{component}.pid", f"{pid}\n")

    def attend(self) -> None:
        """Collect what ended, and start again what has waited for its turn."""
        for pid, component in list(self.running.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.running[pid]
                self._ended(component)
        now = time.monotonic()
        for component in [each for each, due in self.waiting.items() if due <= now and not self.stopping]:
            del self.waiting[component]
            self.start(component)

    def tell(self, number: signal.Signals) -> None:
        """A signal to every component."""
        for pid in self.running:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _ended(self, component: str) -> None:
        """Have it started again: at once the first time, then ever later. A database may be away for minutes.

        One that dies over and over while the crew comes up is set up wrongly: the crew fails, and its log says why.
        """
        now = time.monotonic()
        recent = self.deaths[component] = [at for at in self.deaths[component] if now - at < 2 * _STARTING_S] + [now]
        if self.stopping:
            return
        if now - self.began < _STARTING_S and len(recent) >= _STARTS_TO_TRY:
            print(f"{component} ended {len(recent)} times at the start; its log says why", flush=True)
            self.failed = True
            return
        delay_s = 0.0 if len(recent) == 1 else min(_LONGEST_WAIT_S, 2.0 ** (len(recent) - 2))
        print(f"{component} ended, starting it again in {delay_s:.0f} s", flush=True)
        self.waiting[component] = now + delay_s


def _become(component: str, log: Path | None) -> None:
    """Turn this forked child into `airflow COMPONENT`, writing to `log` or where this process does; never returns."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
        from airflow import settings
        from airflow.__main__ import main

        if settings.engine is not None:
            settings.engine.dispose(close=False)  # connections belong to the parent
        sys.argv = ["airflow", component, *COMPONENTS[component]]
        main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def bring_up(stack: StackHome) -> None:
    """The database at this version of Airflow, with the pools that the specs name."""
    Database.of_this_process().bring_up(stack.migrated)
    create_missing_pools(pools_of(specs_folder()))


def _import_airflow() -> None:
    """What the components would each import for themselves, at 5 s of CPU time apiece."""
    import airflow.api_fastapi.core_api.app
    import airflow.api_fastapi.execution_api.app
    import airflow.cli.cli_parser
    import airflow.jobs.dag_processor_job_runner
    import airflow.jobs.scheduler_job_runner
    import airflow.jobs.triggerer_job_runner  # noqa: F401


def _owner_is_alive(owner: int | None) -> bool:
    if owner is None:
        return True
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop (INT or TERM), until the owner is gone, or until components keep dying."""
    options = _parser().parse_args(arguments)
    stack = StackHome.default().create()
    _import_airflow()
    try:
        bring_up(stack)
        if options.alone:
            Database.of_this_process().refuse_company()
    except DatabaseError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    if options.prepare:
        return 0
    gc.collect()
    gc.freeze()  # keep the children from copying what they only read
    to_files = options.logs == "files"
    crew = Crew(stack, logs=lambda component: stack.logs / f"{component}.log" if to_files else None)
    return _run(crew, options.only or list(COMPONENTS), options.owner)


def _run(crew: Crew, components: list[str], owner: int | None) -> int:
    def stop(number: int, _: object) -> None:
        crew.stopping = True
        if number == signal.SIGTERM:  # INT comes from a terminal, or from `end_session`, and goes to everybody
            crew.tell(signal.SIGINT)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    for component in components:
        crew.start(component)
    while crew.at_work and not (crew.stopping or crew.failed):
        crew.attend()
        if not _owner_is_alive(owner):
            _abandon(crew.stack)
            return 1
        time.sleep(0.3)
    if crew.failed:
        crew.stopping = True
        crew.tell(signal.SIGINT)
    deadline = time.monotonic() + _STOPPING_S
    while crew.running and time.monotonic() < deadline:
        crew.attend()
        time.sleep(0.1)
    crew.tell(signal.SIGKILL)
    return 0 if crew.stopping and not crew.failed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ett_airflow.stack.components")
    parser.add_argument("--owner", type=int, help="stop when this process is gone")
    parser.add_argument("--only", action="append", choices=list(COMPONENTS), help="this component (again for more)")
    parser.add_argument("--logs", choices=["files", "stdout"], default="files")
    parser.add_argument("--alone", action="store_true", help="fail if another Airflow works on the same database")
    parser.add_argument("--prepare", action="store_true", help="migrate the database, create pools, and end")
    return parser


def _abandon(stack: StackHome) -> None:
    """The owner was killed without a chance to clean up: end everything in this session, and then its jobs."""
    from ett_airflow.stack.server import cancel_jobs, end_session

    stack.state.unlink(missing_ok=True)
    end_session(os.getsid(0))
    cancel_jobs()


if __name__ == "__main__":
    sys.exit(main())
