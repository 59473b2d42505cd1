"""Device slots of this machine: jobs that ask for more than is free wait in line, first come first served."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.launch.errors import CapacityError, InvalidRequestError, RecordWriteError
from trainer.launch.file_lock import FileLock, locked_elsewhere
from trainer.launch.jobs import JobRequest

SLOTS_VARIABLE = "ETT_LOCAL_SLOTS"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_DEFAULT_CPU_SLOTS = 4  # two jobs of the default two ranks


@dataclass(frozen=True)
class Pool:
    """The devices of one kind that this host lends out, by the names that the job gets to see."""

    kind: str
    devices: tuple[str, ...]

    @classmethod
    def for_request(cls, request: JobRequest, environment: Mapping[str, str] | None = None) -> Pool:
        """The pool that the job draws from; `$ETT_LOCAL_SLOTS` sets how many CPU slots there are, or caps the GPUs."""
        environment = os.environ if environment is None else environment
        limit = _limit(environment)
        if request.resources.gpus:
            return cls("gpu", _visible_gpus(environment)[:limit])
        count = _DEFAULT_CPU_SLOTS if limit is None else limit
        return cls("cpu", tuple(str(index) for index in range(count)))


def _limit(environment: Mapping[str, str]) -> int | None:
    text = environment.get(SLOTS_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal():
        raise InvalidRequestError(f"${SLOTS_VARIABLE}={text!r} must be a number of devices, such as 4")
    return int(text)


def _visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    configured = environment.get(VISIBLE_DEVICES)
    if configured is not None:
        return tuple(name for name in configured.split(",") if name)
    names = [path.name for path in Path("/dev").glob("nvidia*")]
    return tuple(sorted((n.removeprefix("nvidia") for n in names if re.fullmatch(r"nvidia\d+", n)), key=int))


def devices_wanted(request: JobRequest) -> int:
    """How many slots the job holds: its GPUs, else what it declares."""
    return request.replicas * request.resources.gpus or request.devices


def check_fits(request: JobRequest) -> None:
    """Raises CapacityError for a job that would wait forever."""
    wanted, total = devices_wanted(request), len(Pool.for_request(request).devices)
    if wanted > total:
        raise CapacityError(request.key.name, wanted, total)


@dataclass(frozen=True)
class Allocation:
    """Slots held until released or until this process dies.

    Attributes:
        previous_owners: jobs that died holding these slots; their processes may still use the devices.
    """

    devices: tuple[str, ...]
    previous_owners: tuple[str, ...]
    _locks: tuple[FileLock, ...]

    def release(self) -> None:
        for lock in self._locks:
            if lock.held:
                with contextlib.suppress(OSError):
                    lock.path.write_text("")
                lock.release()


class Line:
    """One job's place among those that wait for slots of a pool. It is lost when the waiting process dies."""

    def __init__(self, root: Path, *, pool: Pool, wanted: int, owner: str, submitted_ns: int) -> None:
        self._root = root
        self._pool = pool
        self._wanted = wanted
        self._owner = owner
        self._tickets = root / f"{pool.kind}-line"
        self._ticket = FileLock(self._tickets / f"{submitted_ns:020d}-{owner}")
        try:
            self._tickets.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RecordWriteError(str(self._tickets), error) from error

    def try_allocate(self) -> Allocation | None:
        """The slots if this job is first in line and enough are free; queues it otherwise."""
        if self._wanted == 0:
            return Allocation((), (), ())
        with FileLock(self._root / "allocator.lock"):
            if not self._ticket.held:
                self._ticket.try_acquire()
            if self._first_in_line() != self._ticket.path.name:
                return None
            allocation = self._take()
            if allocation is not None:
                self._discard_ticket()
            return allocation

    def leave(self) -> None:
        """Give up waiting."""
        if self._ticket.held:
            with FileLock(self._root / "allocator.lock"):
                self._discard_ticket()

    def _discard_ticket(self) -> None:
        self._ticket.path.unlink(missing_ok=True)
        self._ticket.release()

    def _first_in_line(self) -> str | None:
        for path in sorted(self._tickets.iterdir()):
            if path == self._ticket.path or locked_elsewhere(path):
                return path.name
            path.unlink(missing_ok=True)  # its job died waiting
        return None

    def _take(self) -> Allocation | None:
        held: list[tuple[str, FileLock]] = []
        for device in self._pool.devices:
            lock = FileLock(self._root / f"{self._pool.kind}-{device}")
            if len(held) < self._wanted and lock.try_acquire():
                held.append((device, lock))
        if len(held) < self._wanted:
            for _, lock in held:
                lock.release()
            return None
        owners = {lock.path.read_text() for _, lock in held} - {"", self._owner}
        for _, lock in held:
            lock.path.write_text(self._owner)
        return Allocation(tuple(d for d, _ in held), tuple(sorted(owners)), tuple(lock for _, lock in held))
