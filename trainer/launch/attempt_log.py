"""The launcher's points in the event log: what happened to an attempt outside its ranks (ett-metric section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from ett_reports.events import Cause, Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.launch.jobs import JobRequest, JobState, RankStatus
from trainer.run_folder import safe_name


class RankStart(StrEnum):
    """How the ranks of an attempt come to be."""

    COLD = "cold"  # each is a new interpreter
    WARM = "warm"  # forked from a standby that has imported what they need


class AttemptLog:
    """Records one attempt's points into node-local `events`. Jobs without devices have no attempts and leave none."""

    def __init__(self, events: Path, request: JobRequest, *, writer: str) -> None:
        """`writer` tells the processes apart that write about one attempt, such as "submit"."""
        self._attempt = request.key.attempt
        self._devices = request.devices
        self._recorder: Recorder | None = None
        if request.devices:
            process = f"launcher-{safe_name(request.key.task)}-a{request.key.attempt}-{writer}"
            identity = ProcessIdentity(
                job=request.run_folder.job,
                source=Source.LAUNCHER,
                process=process,
                attempt=request.key.attempt,
                devices=request.devices,
            )
            self._recorder = Recorder(events, identity)

    def submitted(self, wall_ns: int) -> None:
        self._point(Point.SUBMITTED, wall_ns, devices=self._devices)

    def allocated(self, wall_ns: int) -> None:
        self._point(Point.ALLOCATED, wall_ns, devices=self._devices)

    def launched(self, wall_ns: int, start: RankStart, *, why: str | None = None) -> None:
        """The ranks' start, and for a cold one why it is."""
        self._point(Point.LAUNCHED, wall_ns, start=start, why=why)

    def failed(self, cause: Cause, *, failed_ns: int, detected_ns: int, exit_code: int | None, message: str) -> None:
        """The failure at its instant, and that we know of it since `detected_ns`."""
        self._point(Point.FAILURE, failed_ns, cause=cause, exit_code=exit_code, message=message)
        self._point(Point.DETECTED, detected_ns, cause=cause)

    def released(self, state: JobState, cause: Cause | None, ranks: Sequence[RankStatus], *, wall_ns: int) -> None:
        """No process of the attempt is left and its devices are free."""
        completed = state is JobState.SUCCEEDED
        self._point(
            Point.RELEASED,
            wall_ns,
            outcome="completed" if completed else "failed",
            cause=cause,
            exit_codes=[rank.exit_code for rank in ranks],
        )

    def _point(self, name: Point, wall_ns: int, **attrs: object) -> None:
        if self._recorder is not None:
            self._recorder.point(name, wall_ns=wall_ns, attempt=self._attempt, **attrs)

    def heartbeat(self) -> None:
        if self._recorder is not None:
            self._recorder.heartbeat()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
