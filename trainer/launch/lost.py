"""Cleaning up after a job whose supervisor died: its ranks may still run and hold devices."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from itertools import chain

from ett_reports.events import Cause, Point
from trainer.launch.attempt_log import AttemptLog
from trainer.launch.conclusion import conclude, shipper_for
from trainer.launch.errors import LaunchError
from trainer.launch.heartbeat import last_sign_of_life
from trainer.launch.job_folder import JobFolder, StatusRecord
from trainer.launch.jobs import JobState, JobStatus
from trainer.launch.processes import end_all, in_sessions, marked

_PATIENCE_S = 60.0
_POLL_S = 0.1
_WRITER = "reap"

log = logging.getLogger(__name__)


def reap(folder: JobFolder) -> None:
    """Kill what survives of a LOST job, complete its event log and settle its state. Nothing to do for any other job.

    Raises:
        LaunchError: somebody else is at it and does not finish.
    """
    lock = folder.lock()
    give_up = time.monotonic() + _PATIENCE_S
    while not lock.try_acquire():
        if time.monotonic() > give_up:
            raise LaunchError(f"job {folder.name} is still being ended by another process; try again later")
        time.sleep(_POLL_S)
    try:
        record = folder.status()
        if record is not None and not record.status.terminal:
            _reap(folder, record)
    finally:
        lock.release()


def _reap(folder: JobFolder, record: StatusRecord) -> None:
    request = folder.registration().request
    last_seen = last_sign_of_life(folder.events_dir)
    killed = end_all(
        lambda: {p.pid: p for p in chain(marked(folder), in_sessions(record.status.ranks, record.boot_id))}.values()
    )
    now = time.time_ns()
    status = lost_status(record)
    status = replace(status, ended_ns=now, message=f"{status.message}; {killed} surviving processes were killed")
    log.warning("job %s: %s", folder.name, status.message)
    if not _told(folder):
        # Survivors went on training until we ended them; without any the attempt ended at its last sign of life.
        failed_ns = now if killed else min(last_seen or record.status.started_ns or now, now)
        with AttemptLog(folder.events_dir, request, writer=_WRITER) as attempt:
            attempt.failed(
                Cause.INFRASTRUCTURE, failed_ns=failed_ns, detected_ns=now, exit_code=None, message=status.message
            )
            attempt.released(JobState.LOST, Cause.INFRASTRUCTURE, status.ranks, wall_ns=now)
    conclude(folder, request, shipper_for(folder, request), status)


def _told(folder: JobFolder) -> bool:
    """Whether one who reaped the job before, and died before it could settle the state, has told of the release."""
    logs = folder.events_dir.glob(f"*-{_WRITER}*/*.jsonl")
    return any(f'"name":"{Point.RELEASED}"' in path.read_text(errors="replace") for path in logs)


def lost_status(record: StatusRecord) -> JobStatus:
    """How a job reads whose supervisor died before telling its end."""
    return replace(
        record.status,
        state=JobState.LOST,
        cause=Cause.INFRASTRUCTURE,
        message=f"its supervisor (process {record.supervisor_pid}) died, or the machine restarted",
    )
