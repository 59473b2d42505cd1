"""`make refresh`: prepare the data, start Airflow, train the next day, show it, and leave nothing running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.outcome import first_failure, last_messages, registered_snapshot
from ett_airflow.stack.display import Display
from ett_airflow.stack.following import Follower, Snapshot
from ett_airflow.stack.next_day import next_window, run_id_for
from ett_airflow.stack.preparation import Preparation
from ett_airflow.stack.server import (
    Server,
    StackError,
    held,
    running_server,
    start_server,
    take_down,
    wait_healthy,
)
from ett_airflow.stack.settings import StackHome
from ett_airflow.window import NothingToTrainError
from trainer.run_folder import RunFolder, safe_name
from trainer.spec import RefreshSpec, Window, load_spec

POLL_S = 1.0
_API_OUTAGE_S = 60.0


class RefreshInterruptedError(Exception):
    """INT or TERM arrived."""


@dataclass(frozen=True)
class Triggered:
    """A run of this refresh in Airflow, new or found going on."""

    run_id: str
    folder: RunFolder


def refresh(spec_path: Path, params: dict[str, Any]) -> int:
    """Run one refresh; 0 when it is green or nothing is left to train, 1 when it is red, 130 when interrupted."""
    spec = load_spec(spec_path)
    stack = StackHome.default().create()
    busy = f"a refresh runs already under {stack.root.parent}; wait for it, or stop it with `make down`"
    with held(stack.refresh_lock, busy), _signals_as_exceptions(), Display() as display:
        found = running_server(stack)
        preparation = Preparation.start(spec_path) if spec.data.prepare else None
        server = found
        try:
            server = server or start_server(stack, owner=os.getpid())
            _prepare(display, preparation)
            window = None if params else next_window(spec)
            wait_healthy(server, tick=lambda: display.waiting("starting Airflow"))
            return _one_run(display, server, spec, params or _params(window))
        except NothingToTrainError as nothing:
            display.say(f"Nothing to refresh: {nothing}")
            return 0
        except RefreshInterruptedError:
            display.say("Interrupted: stopping what this refresh started ...")
            return 130
        finally:
            with _signals_ignored():
                if preparation is not None:
                    preparation.stop()
                if found is None and server is not None:
                    take_down(server)


def _params(window: Window | None) -> dict[str, Any]:
    return {"window_start": window.start.isoformat(), "window_end": window.end.isoformat()} if window else {}


def _prepare(display: Display, preparation: Preparation | None) -> None:
    while preparation is not None and not preparation.finished():
        display.waiting(f"preparing data  {preparation.latest}")
        time.sleep(0.2)


def _one_run(display: Display, server: Server, spec: RefreshSpec, params: dict[str, Any]) -> int:
    api = server.api
    _unpause(api, spec, since=server.started)
    triggered = _trigger(api, spec, params)
    display.say(
        f"Refreshing {spec.name}, run {triggered.run_id}  ({server.url}, user admin, password {server.password})"
    )
    follower = Follower(api, spec.name, triggered.run_id, triggered.folder)
    try:
        last = _follow(display, follower)
    except RefreshInterruptedError:
        _stop_run(api, spec.name, triggered.run_id)
        raise
    _conclude(display, last, triggered, follower)
    return 0 if last.state == "success" else 1


def _unpause(api: AirflowApi, spec: RefreshSpec, since: float) -> None:
    """Wait until Airflow has parsed this spec since the server started, then let its runs run."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            dag = api.get(f"/dags/{spec.name}")
        except AirflowApiError as error:
            if error.status != 404:
                raise
            dag = {}
        if not dag.get("is_stale", True) and _epoch(dag.get("last_parsed_time")) >= since:
            api.patch(f"/dags/{spec.name}", {"is_paused": False})
            return
        time.sleep(0.3)
    errors = api.get("/importErrors")["import_errors"]
    told = "\n".join(f"{error['filename']}: {error['stack_trace']}" for error in errors) or "no import error is shown"
    raise StackError(f"Airflow does not know DAG {spec.name!r}; is its spec in dags/refreshes?\n{told}")


def _trigger(api: AirflowApi, spec: RefreshSpec, params: dict[str, Any]) -> Triggered:
    """Trigger a run, or find the one that an interrupted call left active: a refresh has one run at a time."""
    active = api.get(f"/dags/{spec.name}/dagRuns", state=["running", "queued"], limit=1)["dag_runs"]
    if active:
        run_id = active[0]["dag_run_id"]
    else:
        window = Window(start=params["window_start"], end=params["window_end"]) if "window_end" in params else None
        run_id = run_id_for(spec, window) if window else f"manual-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": params}
        api.post(f"/dags/{spec.name}/dagRuns", body)
    return Triggered(run_id, RunFolder.of(spec.name, safe_name(run_id)))


def _follow(display: Display, follower: Follower) -> Snapshot:
    silent_since: float | None = None
    while True:
        try:
            snapshot = follower.look()
        except AirflowApiError as error:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > _API_OUTAGE_S:
                raise StackError(f"Airflow stopped answering: {error}") from error
        else:
            silent_since = None
            display.show(snapshot)
            if snapshot.ended:
                return snapshot
        time.sleep(POLL_S)


def _stop_run(api: AirflowApi, dag_id: str, run_id: str) -> None:
    """Mark the run failed, so that the next start of Airflow does not go on with it."""
    # Where Airflow is going down too, the next refresh finds the run active and goes on with it.
    with suppress(AirflowApiError):
        api.patch(f"/dags/{dag_id}/dagRuns/{run_id}", {"state": "failed"})


def _conclude(display: Display, last: Snapshot, triggered: Triggered, follower: Follower) -> None:
    """Print the ETT table and what was made; for a red run, why."""
    folder = triggered.folder
    report = folder.report_dir / "ett.html"
    if report.is_file():
        _print_table(display, folder)
    if last.state == "success":
        display.say(f"Green: run {triggered.run_id}")
        display.say(f"Snapshot  {registered_snapshot(folder)}")
    else:
        display.say(f"Red: {_reason(last, folder, follower)}")
    if report.is_file():
        display.say(f"Report    {report}")
    display.say(f"Run       {folder.root}")


def _print_table(display: Display, folder: RunFolder) -> None:
    from ett_reports.document import read_document
    from ett_reports.render.terminal import render_terminal

    document = read_document(folder.report_dir / "ett.json")
    display.console.print(render_terminal(document.job, document.refresh, document.judgement))


def _reason(last: Snapshot, folder: RunFolder, follower: Follower) -> str:
    from ett_reports.reader import LogError, read_log

    try:
        messages = last_messages(read_log(folder.events_dir))
    except LogError:
        messages = {}
    failure = first_failure(last.tasks, messages)
    if failure is None:
        return messages.get("report", "the run failed after all its tasks")
    if failure.task not in messages:
        logged = follower.error_of(failure.task)
        return f"{failure.task}: {logged}" if logged else str(failure)
    return str(failure)


def _epoch(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise RefreshInterruptedError

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Cleaning up is not interrupted: a second Ctrl-C would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
