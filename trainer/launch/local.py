"""Jobs on this machine, each under a detached supervisor of its own that outlives whoever submitted it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainer.launch.attempt_log import AttemptLog
from trainer.launch.capacity import check_fits
from trainer.launch.errors import ForeignHostError, LaunchError, RecordWriteError, SupervisorStartError
from trainer.launch.job_folder import Host, JobFolder, register, same_run_folder
from trainer.launch.jobs import JobHandle, JobKey, JobRequest, JobState, JobStatus
from trainer.launch.log_files import appended, followed, last_lines, merged
from trainer.run_folder import HOME_VARIABLE, home

SCHEDULER = "local"
_PACKAGES = Path(__file__).resolve().parents[2]
_START_PATIENCE_S = 30.0
_NOT_FOR_JOBS = ("AIRFLOW", "_AIRFLOW")  # the control plane's secrets
_OF_ANOTHER_JOB = ("ETT_JOB", "ETT_JOB_DIR")


class LocalLauncher:
    """The `local` scheduler. Stateless: all it knows is on disk below `$ETT_HOME/local`."""

    def submit(self, request: JobRequest) -> JobHandle:
        """Register the job, then start its supervisor; either half is made up for by the next call.

        Raises:
            CapacityError: this machine never has that many devices.
            RecordWriteError: the job could not be registered; nothing has started.
            SupervisorStartError: registered but not started; submit again.
        """
        check_fits(request)
        folder = self._current(request.key) or register(request, prepare=_record_submission(request))
        _ensure_supervised(folder)
        return _handle(folder)

    def find(self, key: JobKey) -> JobHandle | None:
        folder = self._current(key)
        return None if folder is None else _handle(folder)

    def describe(self, handle: JobHandle) -> JobStatus:
        folder = JobFolder.of(handle.id)
        status = observe(folder)
        host, here = folder.registration().host, Host.here()
        if not (status.state.terminal and status.ended_ns) and not host.shares_processes_with(here):
            raise ForeignHostError(folder.name, host.name, here.name)
        return status

    def cancel(self, handle: JobHandle) -> None:
        folder = JobFolder.of(handle.id)
        status = observe(folder)
        if status.state is JobState.LOST:
            _reap(folder)
        elif not status.terminal:
            folder.ask(folder.cancel_path)
            _ensure_supervised(folder)  # a job that never started is ended by its supervisor like any other

    def preempt(self, handle: JobHandle) -> None:
        folder = JobFolder.of(handle.id)
        state = observe(folder).state
        if state is not JobState.RUNNING:
            raise LaunchError(f"job {handle.id} is {state}; only a running job can be preempted")
        folder.ask(folder.preempt_path)

    def logs(self, handle: JobHandle, *, last: int | None = None) -> Iterator[str]:
        folder = JobFolder.of(handle.id)
        folder.registration()
        return merged(folder, last)

    def logs_after(
        self, handle: JobHandle, position: Mapping[int, int], *, limit: int
    ) -> tuple[list[str], dict[int, int]]:
        folder = JobFolder.of(handle.id)
        folder.registration()
        return appended(folder, position, limit)

    def follow_logs(self, handle: JobHandle) -> Iterator[str]:
        folder = JobFolder.of(handle.id)
        return followed(folder, lambda: observe(folder).terminal)

    def _current(self, key: JobKey) -> JobFolder | None:
        """The registered job, unless it belongs to a run folder that was deleted since: that one is put aside."""
        folder = JobFolder.of(key.name)
        if not folder.exists or same_run_folder(folder.registration()):
            return folder if folder.exists else None
        status = observe(folder)
        if status.state is JobState.LOST:
            _reap(folder)
        elif not status.terminal:
            raise LaunchError(
                f"job {folder.name} still runs for a run folder that was deleted; "
                f"`python -m trainer.launch cancel {folder.name}` first"
            )
        try:
            folder.root.rename(folder.root.with_name(f".{folder.name}.{time.time_ns()}"))
        except FileNotFoundError:
            pass  # another submitter was faster
        except OSError as error:
            raise RecordWriteError(str(folder.root), error) from error
        return None


def observe(folder: JobFolder) -> JobStatus:
    """The job's state by its records and its lock; changes nothing.

    Raises:
        JobNotFoundError: no such job.
    """
    supervised = folder.supervised  # before the status: it may end in between, never come back
    record = folder.status()
    if record is None:
        registration = folder.registration()
        return JobStatus(
            state=JobState.PENDING if supervised else JobState.REGISTERED,
            attempt=registration.request.key.attempt,
            submitted_ns=registration.submitted_ns,
            message="its supervisor starts" if supervised else "registered, not started yet",
        )
    if record.status.terminal or supervised:
        return record.status
    from trainer.launch.lost import lost_status  # psutil: not for those who look at healthy jobs

    return lost_status(record)


def _reap(folder: JobFolder) -> None:
    from trainer.launch.lost import reap

    reap(folder)


def _handle(folder: JobFolder) -> JobHandle:
    return JobHandle(SCHEDULER, folder.name, folder.registration().request.run_folder.url)


def _record_submission(request: JobRequest) -> Callable[[JobFolder, int], None]:
    """The submission's point is part of the registration: neither is ever there without the other."""

    def record(folder: JobFolder, submitted_ns: int) -> None:
        with AttemptLog(folder.events_dir, request, writer="submit") as attempt:
            attempt.submitted(submitted_ns)

    return record


def _ensure_supervised(folder: JobFolder) -> None:
    """Start the supervisor unless one has taken the job, now or ever. Of several started at once the lock picks one."""
    if folder.status() is None and not folder.supervised:
        _start_supervisor(folder)


def _start_supervisor(folder: JobFolder) -> None:
    """Returns once a supervisor has the job; it says so, or dies, at the other end of a pipe."""
    told, ready = os.pipe()
    try:
        with folder.supervisor_log.open("ab") as log:
            intermediate = subprocess.Popen(
                [sys.executable, "-m", "trainer.launch.supervisor", str(folder.root), str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder.work_dir,
                env=_supervisor_environment(),
                pass_fds=(ready,),
                start_new_session=True,
            )
    except OSError as error:
        raise SupervisorStartError(folder.name, str(error)) from error
    finally:
        os.close(ready)
    try:
        intermediate.wait()
        answered, _, _ = select.select([told], [], [], _START_PATIENCE_S)
        if not (answered and os.read(told, 16)):
            raise SupervisorStartError(folder.name, "\n".join(last_lines(folder.supervisor_log, 5)))
    finally:
        os.close(told)


def _supervisor_environment() -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_FOR_JOBS) and name not in _OF_ANOTHER_JOB
    }
    environment[HOME_VARIABLE] = str(home())
    known = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_PACKAGES}{os.pathsep}{known}" if known else str(_PACKAGES)
    return environment
