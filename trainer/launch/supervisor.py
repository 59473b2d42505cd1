"""The detached process that runs one local job: `python -m trainer.launch.supervisor JOB_FOLDER READY_DESCRIPTOR`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ett_reports.events import Cause
from trainer.launch.app import Placement, app_definition
from trainer.launch.attempt_log import AttemptLog, RankStart
from trainer.launch.capacity import VISIBLE_DEVICES, Allocation, Line, Pool, devices_wanted
from trainer.launch.conclusion import conclude, ship, shipper_for
from trainer.launch.errors import RecordWriteError
from trainer.launch.explanation import Explanation, explanation
from trainer.launch.file_lock import FileLock
from trainer.launch.following import Following
from trainer.launch.job_folder import JobFolder, attempts_of, local_root
from trainer.launch.jobs import JobState, JobStatus
from trainer.launch.lost import reap
from trainer.launch.outcome import Ending, Outcome, ended_how, outcome
from trainer.launch.processes import (
    JOB_FOLDER_VARIABLE,
    JOB_VARIABLE,
    adopt_orphans,
    end_all,
    reap_adopted,
)
from trainer.launch.ranks import RankGroup
from trainer.launch.rendezvous import MASTER_ADDRESS, MasterPort, reserve_port
from trainer.launch.warmth import Warmth
from trainer.run_folder import home

_WAIT_S = 0.2
_LOCK_PATIENCE_S = 2.0

log = logging.getLogger("trainer.launch.supervisor")


class _CancelledError(Exception):
    """The job was cancelled before its ranks were started."""


class Supervisor:
    """One job from its place in the queue to its terminal status. The caller holds the job's lock."""

    def __init__(self, folder: JobFolder) -> None:
        registration = folder.registration()
        self._folder = folder
        self._request = registration.request
        self._submitted_ns = registration.submitted_ns
        self._log = AttemptLog(folder.events_dir, self._request, writer="supervise")
        self._shipper = shipper_for(folder, self._request)
        self._ranks = RankGroup()
        self._warmth = Warmth(self._request)
        self._allocation: Allocation | None = None
        self._port: MasterPort | None = None
        self._status = JobStatus(
            state=JobState.PENDING, attempt=self._request.key.attempt, submitted_ns=registration.submitted_ns
        )

    def take_over(self) -> None:
        """Make it known that the job has a supervisor."""
        self._folder.write_status(self._status)

    def run(self) -> None:
        """The job's life."""
        try:
            self._warmth.begin()
            self._ranks.prepare()
            self._await_predecessors()
            self._await_capacity()
            self._start()
            following = Following(self._folder, self._request, self._ranks, self._log, self._shipper, self._update)
            following.until_gone()
            self._finish(following.ending, outcome(following.ending, following.failures, self._ranks.statuses))
        except _CancelledError:
            now = time.time_ns()
            self._log.failed(Cause.CANCELLED, failed_ns=now, detected_ns=now, exit_code=None, message="cancelled")
            self._finish(Ending.CANCELLED, Outcome(JobState.CANCELLED, Cause.CANCELLED, None))
        except Exception as error:
            log.exception("supervising failed")
            self._abandon(error)

    def _update(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)
        try:
            self._folder.write_status(self._status)
        except RecordWriteError as error:  # a full disk must not end a job that runs; only its end must be written
            log.error("%s", error)

    def _await_predecessors(self) -> None:
        """Two attempts of a task never run at once; what a lost one left is ended first."""
        for earlier in attempts_of(self._request.key):
            if _unfinished(earlier) and earlier.supervised:
                self._update(message=f"waits for {earlier.name} to end")
                while _unfinished(earlier) and earlier.supervised:
                    self._pause()
            reap(earlier)

    def _await_capacity(self) -> None:
        line = Line(
            local_root() / "slots",
            pool=Pool.for_request(self._request),
            wanted=devices_wanted(self._request),
            owner=self._folder.name,
            submitted_ns=self._submitted_ns,
        )
        try:
            allocation = line.try_allocate()
            if allocation is None:
                self._update(message=f"waits for {devices_wanted(self._request)} free device slots")
            while allocation is None:
                self._pause()
                allocation = line.try_allocate()
        finally:
            line.leave()
        self._allocation = allocation
        for owner in allocation.previous_owners:
            reap(JobFolder.of(owner))

    def _pause(self) -> None:
        if self._folder.cancel_path.exists():
            raise _CancelledError
        ship(self._shipper)
        self._log.heartbeat()
        time.sleep(_WAIT_S)

    def _start(self) -> None:
        if self._folder.cancel_path.exists():
            raise _CancelledError
        allocated_ns = time.time_ns()
        self._log.allocated(allocated_ns)
        self._port = reserve_port(self._folder.name)
        app = app_definition(self._request, self._placement(self._port))
        launched_ns = time.time_ns()
        borrowed = self._warmth.borrow(self._pause)
        start = RankStart.COLD if borrowed.keeper is None else RankStart.WARM
        self._log.launched(launched_ns, start, why=borrowed.why_not)
        self._ranks.start(app, self._folder.logs_dir, borrowed.keeper)
        self._update(
            state=JobState.RUNNING,
            message="",
            allocated_ns=allocated_ns,
            started_ns=launched_ns,
            ranks=self._ranks.statuses,
        )

    def _placement(self, port: MasterPort) -> Placement:
        assert self._allocation is not None
        environment = {JOB_VARIABLE: self._folder.name, JOB_FOLDER_VARIABLE: str(self._folder.root)}
        if self._request.resources.gpus:
            environment[VISIBLE_DEVICES] = ",".join(self._allocation.devices)
        return Placement(
            home=str(home()),
            events_dir=str(self._folder.events_dir),
            errors_dir=str(self._folder.errors_dir),
            master_address=MASTER_ADDRESS,
            master_port=port.number,
            local_world_size=self._request.replicas,
            environment=environment,
        )

    def _finish(self, ending: Ending, result: Outcome) -> None:
        told = self._explain(ending, result)
        # A trainer may know better than its exit code, such as a collective that timed out: a hang.
        cause = told.cause if result.cause is Cause.APPLICATION and told.cause is not None else result.cause
        self._conclude(result, cause, told)

    def _explain(self, ending: Ending, result: Outcome) -> Explanation:
        if result.deciding is None or result.state is JobState.SUCCEEDED:
            return Explanation("" if result.cause is None else _REASONS.get(ending, ""))
        told = explanation(self._folder, result.deciding.rank)
        headline = f"rank {result.deciding.rank} {ended_how(result.deciding.exit_code or 0)}"
        return replace(told, message=f"{headline}: {told.message}" if told.message else headline)

    def _conclude(self, result: Outcome, cause: Cause | None, told: Explanation) -> None:
        """Nothing of the job is left, its devices are free, its traces are in the run folder; then its end is known."""
        end_all(lambda: self._ranks.everything(self._folder))
        self._ranks.wait(0)
        reap_adopted(())
        if self._allocation is not None:
            self._allocation.release()
        if self._port is not None:
            self._port.release()
        ended_ns = time.time_ns()
        self._ranks.close()
        self._log.released(result.state, cause, self._ranks.statuses, wall_ns=ended_ns)
        self._log.close()
        self._status = replace(
            self._status,
            state=result.state,
            cause=cause,
            exit_code=result.exit_code,
            message=told.message,
            details=told.details,
            ended_ns=ended_ns,
            ranks=self._ranks.statuses,
        )
        conclude(self._folder, self._request, self._shipper, self._status)

    def _abandon(self, error: Exception) -> None:
        """Our own failure is the job's: infrastructure."""
        now = time.time_ns()
        message = f"the supervisor failed: {type(error).__name__}: {error}"
        self._log.failed(Cause.INFRASTRUCTURE, failed_ns=now, detected_ns=now, exit_code=None, message=message)
        self._conclude(Outcome(JobState.FAILED, Cause.INFRASTRUCTURE, None), Cause.INFRASTRUCTURE, Explanation(message))


_REASONS = {
    Ending.CANCELLED: "cancelled",
    Ending.HUNG: "no rank gave a sign of life for longer than hang_timeout_s; their logs end with their stacks",
}


def _unfinished(folder: JobFolder) -> bool:
    record = folder.status()
    return record is not None and not record.status.terminal


def _take_lock(folder: JobFolder) -> FileLock | None:
    """The job's lock, unless another supervisor has it or had it. A status probe holds it for an instant only."""
    lock = folder.lock()
    give_up = time.monotonic() + _LOCK_PATIENCE_S
    while not lock.try_acquire():
        if folder.status() is not None or time.monotonic() > give_up:
            return None
        time.sleep(0.01)
    if folder.status() is not None:  # it ran, or was cancelled, before we came
        lock.release()
        return None
    return lock


def _detach() -> None:
    """Leave the submitter's process tree: who ends its children, or its group, does not end us."""
    if os.fork():
        os._exit(0)
    os.setsid()


def _pass_on(folder: JobFolder) -> None:
    with contextlib.suppress(RecordWriteError):
        folder.ask(folder.preempt_path)


def main(arguments: list[str]) -> int:
    """Run the job of a folder unless it has been taken; tells the submitter through a pipe when it holds it."""
    folder, ready = JobFolder(Path(arguments[0])), int(arguments[1])
    _detach()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN: the ranks would inherit that
    adopt_orphans()
    lock = _take_lock(folder)
    supervisor = None
    if lock is not None:
        # A machine that shuts down sends SIGTERM: the ranks get their chance to save.
        signal.signal(signal.SIGTERM, lambda *_: _pass_on(folder))
        supervisor = Supervisor(folder)
        supervisor.take_over()
    with contextlib.suppress(BrokenPipeError):  # the submitter may be dead; the job goes on
        os.write(ready, b"ready")
    os.close(ready)
    if supervisor is not None:
        supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
