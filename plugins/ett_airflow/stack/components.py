"""The process above Airflow's components: forks them from one warm parent, restarts what dies, ends with its owner.

Run as `python -m ett_airflow.stack.components [--owner PID]` in a session of its own; `server.py` starts it.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ett_airflow.stack.settings import StackHome

# Logs are read from disk on one machine; the log servers would listen on every interface.
COMPONENTS = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
_RESTARTS_PER_MINUTE = 5


@dataclass
class Crew:
    """The forked components by process id."""

    stack: StackHome
    running: dict[int, str] = field(default_factory=dict)
    deaths: list[float] = field(default_factory=list)
    stopping: bool = False

    def start(self, component: str) -> None:
        """Fork one component out of this process, which has all of Airflow imported already."""
        pid = os.fork()
        if pid == 0:
            _become(component, self.stack.logs / f"{component}.log")
        self.running[pid] = component
        # For people (and tests) who want to look at, or kill, one of them.
        (self.stack.logs / f"{component}.pid").write_text(f"{pid}\n", encoding="utf-8")

    def reap(self) -> None:
        """Collect what ended; start it again unless it dies over and over."""
        for pid, component in list(self.running.items()):
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self.running[pid]
            now = time.monotonic()
            self.deaths = [at for at in self.deaths if now - at < 60] + [now]
            if not self.stopping and len(self.deaths) <= _RESTARTS_PER_MINUTE:
                print(f"{component} ended, starting it again", flush=True)
                self.start(component)


def _become(component: str, log: Path) -> None:
    """Turn this forked child into `airflow COMPONENT`; never returns."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def bring_up_database(stack: StackHome) -> None:
    """Create or migrate the database; skipped when this version of Airflow has done so before."""
    from airflow import __version__
    from airflow.utils import db

    marker = stack.migrated
    if stack.database.exists() and marker.exists() and marker.read_text(encoding="utf-8") == __version__:
        return
    db.upgradedb()
    marker.write_text(__version__, encoding="utf-8")


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
    parser = argparse.ArgumentParser(prog="python -m ett_airflow.stack.components")
    parser.add_argument("--owner", type=int, help="stop when this process is gone")
    owner = parser.parse_args(arguments).owner
    stack = StackHome.default()
    _import_airflow()
    bring_up_database(stack)
    gc.collect()
    gc.freeze()  # keep the children from copying what they only read
    crew = Crew(stack)

    def stop(*_: object) -> None:
        crew.stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    for component in COMPONENTS:
        crew.start(component)
    while crew.running and not crew.stopping:
        crew.reap()
        if not _owner_is_alive(owner):
            _abandon(stack)
            return 1
        time.sleep(0.3)
    deadline = time.monotonic() + 15
    while crew.running and time.monotonic() < deadline:
        crew.reap()
        time.sleep(0.1)
    return 0 if crew.stopping else 1


def _abandon(stack: StackHome) -> None:
    """The owner was killed without a chance to clean up: end its jobs and everything in this session."""
    from ett_airflow.stack.server import cancel_jobs, end_session

    stack.state.unlink(missing_ok=True)
    cancel_jobs()
    end_session(os.getsid(0))


if __name__ == "__main__":
    sys.exit(main())
