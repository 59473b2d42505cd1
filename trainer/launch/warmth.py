"""A supervisor's dealings with the warm standby: have one started, and borrow a keeper for the job's ranks.

Whatever goes wrong here makes a cold start with its reason told, never a failed job.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

import psutil

from trainer.attempt import Rank
from trainer.launch.errors import LaunchError
from trainer.launch.interpreters import interpreter_of
from trainer.launch.job_folder import local_root
from trainer.launch.jobs import JobRequest
from trainer.launch.kept_ranks import BorrowedKeeper
from trainer.launch.log_files import last_lines
from trainer.launch.processes import adopting_nobody
from trainer.standby.environment_area import ROOM, ROOM_VARIABLE
from trainer.standby.identity import Identity
from trainer.standby.messages import Kind, MessageError, receive, send
from trainer.standby.place import PlaceError, StandbyPlace
from trainer.standby.preload import QUIET, modules_for

MEMORY_VARIABLE = "ETT_STANDBY_MEMORY_MB"
"""How much the standby may hold after its imports; with more it leaves. Ranks forked from it share these pages."""
_MEMORY_MB = "2048"
_ANSWER_PATIENCE_S = 10.0
_IMPORT_PATIENCE_S = 60.0
_LEAVE_PATIENCE_S = 5.0
_POLL_S = 0.02

log = logging.getLogger(__name__)


class ColdStartError(Exception):
    """Why ranks start as new processes."""


@dataclass(frozen=True)
class Borrowed:
    """What came of asking for a keeper: one, or why there is none."""

    keeper: BorrowedKeeper | None
    why_not: str | None = None


class Warmth:
    """One job's share in the standby of this $ETT_HOME."""

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        self._place = standby_place()
        self._why_not: str | None = None
        self._interpreter = interpreter_of(request.command[0])
        self._environment: dict[str, str] = {}
        self._identity = Identity({})

    def begin(self) -> None:
        """See to it that a standby is importing, so that it may be ready when the job has its devices."""
        if self._request.standby_idle_s is None:
            self._why_not = "not asked for"
            return
        self._attempt(self._begin)

    def borrow(self, pause: Callable[[], object]) -> Borrowed:
        """A keeper for the job's ranks. While the standby still imports, which new ranks would do as well, `pause`."""
        found: list[BorrowedKeeper] = []
        if self._why_not is None:
            self._attempt(lambda: found.append(self._borrow(pause)))
        return Borrowed(found[0] if found else None, self._why_not)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (ColdStartError, LaunchError, PlaceError, MessageError, OSError, psutil.Error, ValueError) as error:
            self._why_not = f"{error}"
            log.warning("ranks start cold: %s", error)

    def _begin(self) -> None:
        self._environment = _environment_of(self._request)
        self._identity = Identity.of(self._interpreter, self._environment, modules_for(self._request.command[0]))
        self._place.prepare()
        if self._place.taken:
            record = self._place.record()
            if record is None or not (differences := self._identity.differs_in(record.parts)):
                return  # ready, or importing
            log.info("the standby is of another kind: %s", ", ".join(differences))
            end_standby(self._place, why=f"job {self._request.key.name} wants another one")
        self._start()

    def _start(self) -> None:
        assert self._request.standby_idle_s is not None
        options = {
            "interpreter": self._interpreter,
            "parts": dict(self._identity.parts),
            "modules": modules_for(self._request.command[0]),
            "threads": int(self._environment["OMP_NUM_THREADS"]),
            "idle_s": self._request.standby_idle_s,
            "memory_mb": int(os.environ.get(MEMORY_VARIABLE) or _MEMORY_MB),
        }
        output = self._place.open_log()
        try:
            with adopting_nobody():  # it outlives this job, so it must not count as one of the job's processes
                subprocess.Popen(
                    [self._interpreter, "-m", "trainer.standby", str(self._place.root), json.dumps(options)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self._place.root,
                    env={**self._environment, **QUIET, ROOM_VARIABLE: ROOM},
                    start_new_session=True,
                ).wait()
        finally:
            os.close(output)

    def _borrow(self, pause: Callable[[], object]) -> BorrowedKeeper:
        give_up = time.monotonic() + _IMPORT_PATIENCE_S
        while True:
            try:
                connection = self._place.connect(_ANSWER_PATIENCE_S)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if not self._place.taken:
                    last = "; ".join(last_lines(self._place.log_path, 1))
                    raise ColdStartError(f"the standby is gone. Its log ends: {last}") from None
                if time.monotonic() > give_up:
                    raise ColdStartError(f"the standby imports for more than {_IMPORT_PATIENCE_S:g} s") from None
                pause()
        try:
            send(
                connection,
                Kind.LEND,
                parts=dict(self._identity.parts),
                job=self._request.key.name,
                idle_s=self._request.standby_idle_s,
            )
            answer = receive(connection)
            if answer is None or answer.kind is not Kind.LENT:
                told = "it hung up" if answer is None else answer.fields.get("why", answer.kind)
                raise ColdStartError(f"the standby did not serve: {told}")
            return BorrowedKeeper(connection, answer.fields["pid"])
        except TimeoutError:
            connection.close()
            end_standby(self._place, why="it does not answer")
            raise ColdStartError(f"the standby did not answer for {_ANSWER_PATIENCE_S:g} s") from None
        except BaseException:
            connection.close()
            raise


def standby_place() -> StandbyPlace:
    """Of this $ETT_HOME."""
    return StandbyPlace(local_root() / "standby")


def end_standby(place: StandbyPlace | None = None, *, why: str) -> bool:
    """Ask the standby to leave, else kill it; running ranks do not notice. Returns whether there was one.

    Raises:
        LaunchError: it does not go.
    """
    place = place or standby_place()
    if not place.taken:
        return False
    record = place.record()
    process = None if record is None else record.process
    try:
        with closing(place.connect(_ANSWER_PATIENCE_S)) as connection:
            send(connection, Kind.RETIRE, why=why)
        gone = _left(place, process)
    except (OSError, PlaceError):
        gone = False
    if not gone and process is not None:  # importing, or stuck
        process.kill()
    if not gone and not _left(place, process):
        raise LaunchError(f"the standby of {place.root} does not leave; its record is standby.json there")
    place.socket_path.unlink(missing_ok=True)
    return True


def _left(place: StandbyPlace, process: psutil.Process | None) -> bool:
    give_up = time.monotonic() + _LEAVE_PATIENCE_S
    while place.taken or (process is not None and process.is_running()):
        if time.monotonic() > give_up:
            return False
        time.sleep(_POLL_S)
    return True


def _environment_of(request: JobRequest) -> dict[str, str]:
    """What a rank's libraries would find when it imports them."""
    environment: Mapping[str, str] = {"PYTHONUNBUFFERED": "x", **os.environ, **request.env}
    ranks = request.replicas
    share = Rank(rank=0, world_size=ranks, local_rank=0, local_world_size=ranks).threads
    return {**environment, "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or str(share)}
