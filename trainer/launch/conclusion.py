"""The end of a local job, in the order that a follower relies on: a terminal status comes after all its traces."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ett_reports.shipping import Shipper
from trainer.launch.errors import RecordWriteError
from trainer.launch.job_folder import JobFolder
from trainer.launch.jobs import JobRequest, JobState, JobStatus
from trainer.launch.log_files import keep_logs
from trainer.preempted_marker import PreemptedMarker

_WRITE_PATIENCE_S = 120.0
_WRITE_RETRY_S = 2.0

log = logging.getLogger(__name__)


def shipper_for(folder: JobFolder, request: JobRequest) -> Shipper:
    """Copies the node-local events into the run folder."""
    return Shipper(folder.events_dir, request.run_folder.events_dir)


def ship(shipper: Shipper) -> None:
    """One round; on failure the events stay where they are until the next."""
    _attempt("ship events", shipper.ship)


def conclude(folder: JobFolder, request: JobRequest, shipper: Shipper, status: JobStatus) -> None:
    """Sweep the events, keep the logs, then make the end known. All processes and recorders must be gone by now."""
    if request.run_folder.root.exists():  # a deleted run is not brought back by its last job
        _attempt("ship the last events", shipper.sweep)
        _attempt("keep the logs", lambda: keep_logs(folder, request))
        if request.devices and status.state is not JobState.PREEMPTED:
            # A rank that was dismissed in startup cannot tell its peer's death from a preemption, and left a marker.
            _attempt("remove the marker", lambda: PreemptedMarker.remove(request.run_folder))
    _write_patiently(folder, status)


def _attempt(what: str, action: Callable[[], object]) -> None:
    """A job's outcome does not hang on its traces: they stay node-local, and the loss shows in the report."""
    try:
        action()
    except OSError:
        log.exception("could not %s", what)


def _write_patiently(folder: JobFolder, status: JobStatus) -> None:
    """On a full disk wait for somebody to make room: without this record a finished job counts as lost."""
    give_up = time.monotonic() + _WRITE_PATIENCE_S
    while True:
        try:
            return folder.write_status(status)
        except RecordWriteError as error:
            log.error("%s", error)
            if time.monotonic() > give_up:
                raise
            time.sleep(_WRITE_RETRY_S)
