"""A run that has failed holds no devices: its jobs are cancelled, also where nobody follows them.

A job is cancelled by its task's trigger. A person who marks the run failed in the moment between a task's deferral
and its trigger's start, or while no triggerer runs, leaves a job without one; and the ETT sensor, which cancels what
`train` has left, ends with the run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from ett_airflow.generation import RunIdentity, RunNameTakenError
from trainer.launch import JobKey, LaunchError, launcher_for, newest_attempt
from trainer.spec import SpecError, load_run_spec

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

JOB_TASKS = ("check_schema", "train", "publish")
"""The tasks of a refresh whose work is a job."""

log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:
    """Called in the API server for a run that is marked by hand, in the scheduler for one that fails by itself."""
    run = f"run {dag_run.run_id} of {dag_run.dag_id} has failed"
    try:
        cancelled = cancel_jobs(RunIdentity(dag_run.dag_id, dag_run.run_id))
    except (LaunchError, SpecError, RunNameTakenError, OSError, ValueError) as error:
        log.warning("%s; its jobs could not be cancelled: %s", run, error)
        return
    if cancelled:
        log.info("%s (%s): cancelled %s", run, msg, ", ".join(cancelled))


def cancel_jobs(identity: RunIdentity) -> list[str]:
    """Cancel what still runs for a run; the jobs' ids. None for a DAG that is no refresh, or a run that never began.

    Raises:
        RunNameTakenError, SpecError, LaunchError, OSError: what the run has left cannot be read, or not be cancelled.
    """
    folder = identity.folder
    if not folder.spec_path.exists():
        return []
    launcher = launcher_for(load_run_spec(folder.spec_path).refresh.resources.scheduler)
    cancelled = []
    for task in JOB_TASKS:
        handle = newest_attempt(launcher, JobKey(refresh=folder.refresh, run=folder.run, task=task, attempt=1))
        if handle is not None and not launcher.describe(handle).terminal:
            launcher.cancel(handle)
            cancelled.append(handle.id)
    return cancelled
