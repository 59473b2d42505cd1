"""The standby's own life: it imports, waits for jobs, forks a keeper for each, and leaves when it is of no more use."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from trainer.launch.file_lock import FileLock
from trainer.standby.identity import Identity, code_on_disk
from trainer.standby.keeper import Keeper
from trainer.standby.messages import Kind, Message, MessageError, receive, send
from trainer.standby.place import PlaceError, StandbyPlace, check_peer
from trainer.standby.preload import UnsafeForkError, check_forkable, preload, resident_mb

_TICK_S = 1.0
_LISTEN_PATIENCE_S = 2.0
_LOCK_PATIENCE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StandbyOptions:
    """How one standby is to be.

    Attributes:
        modules: what it imports.
        threads: of OpenMP in a rank, as $OMP_NUM_THREADS said when this process began.
        memory_mb: with more than this in memory after its imports it leaves.
    """

    interpreter: str
    parts: Mapping[str, str]
    modules: tuple[str, ...]
    threads: int
    idle_s: float
    memory_mb: int


class _LeavingError(Exception):
    """Why this standby ends."""


class StandbyServer:
    """One per $ETT_HOME. Single-threaded, and never more than imports and forks: a fork copies whatever it holds."""

    def __init__(self, place: StandbyPlace, options: StandbyOptions) -> None:
        self._place = place
        self._options = options
        self._identity = Identity(options.parts)
        self._idle_s = options.idle_s
        self._keepers: set[int] = set()
        self._idle_since = time.monotonic()
        self._lock = place.lock()

    def run(self) -> None:
        """Returns when it has ended, for a reason that it logs."""
        if not _acquire(self._lock):
            log.info("another standby is here already")
            return
        try:
            self._place.write_record(self._options.parts)
            seconds = preload(self._options.modules)
            gc.collect()
            gc.freeze()  # so that collections in the ranks leave the shared pages alone
            self._check_code()
            self._check_sound()
            with contextlib.closing(self._listen()) as listener:
                log.info("ready after %.1f s of imports, %d MB in memory", seconds, resident_mb())
                self._serve(listener)
        except (_LeavingError, UnsafeForkError) as reason:
            log.info("leaving: %s", reason)
        finally:
            self._lock.release()

    def _serve(self, listener: socket.socket) -> NoReturn:
        bound = self._place.socket_path.stat().st_ino
        try:
            while True:
                readable, _, _ = select.select([listener], [], [], _TICK_S)
                self._note_ended_keepers()
                if readable:
                    with contextlib.closing(listener.accept()[0]) as connection:
                        self._answer(connection, listener)
                self._check_wanted(bound)
        finally:
            with contextlib.suppress(OSError):
                if self._place.socket_path.stat().st_ino == bound:
                    self._place.socket_path.unlink()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._place.check_private()
        self._place.socket_path.unlink(missing_ok=True)  # of one that was killed
        with self._place.short_socket_path() as path:
            listener.bind(path)
        self._place.socket_path.chmod(0o700)
        listener.listen()
        return listener

    def _answer(self, connection: socket.socket, listener: socket.socket) -> None:
        """One caller. Whatever it does or fails to do, others are served after it."""
        try:
            check_peer(connection)
            connection.settimeout(_LISTEN_PATIENCE_S)
            message = receive(connection)
            if message is None:
                return
            for descriptor in message.files:
                os.close(descriptor)
            if message.kind is Kind.LEND:
                self._lend(message, connection, listener)
            elif message.kind is Kind.RETIRE:
                raise _LeavingError(f"asked to: {message.fields.get('why')}")
            else:
                send(connection, Kind.REFUSED, why=f"a standby does not understand {message.kind}")
        except (OSError, MessageError, PlaceError) as error:
            log.warning("a caller was not served: %s", error)

    def _lend(self, message: Message, connection: socket.socket, listener: socket.socket) -> None:
        try:
            differences = self._identity.differs_in(message.fields["parts"])
            if differences:
                raise _LeavingError(f"a job wants another one; they differ in {', '.join(differences)}")
            self._check_code()
            self._check_sound()
        except (_LeavingError, UnsafeForkError) as reason:
            send(connection, Kind.REFUSED, why=str(reason))
            raise
        self._idle_s = float(message.fields["idle_s"])
        pid = os.fork()
        if pid == 0:
            self._be_keeper(connection, listener)
        self._keepers.add(pid)
        log.info("lent to %s: keeper %d", message.fields.get("job"), pid)

    def _be_keeper(self, connection: socket.socket, listener: socket.socket) -> NoReturn:
        """In the forked process."""
        try:
            listener.close()
            self._lock.release()  # our copy of its descriptor; the standby still holds it
            os.setsid()
            connection.settimeout(None)
            Keeper(connection, threads=self._options.threads).serve()
        finally:
            os._exit(0)

    def _note_ended_keepers(self) -> None:
        while self._keepers:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._keepers.discard(pid)
            self._idle_since = time.monotonic()

    def _check_wanted(self, bound: int) -> None:
        """Raises _LeavingError once this standby is of no more use."""
        try:
            here = self._place.socket_path.stat().st_ino == bound
        except OSError:
            here = False
        if not here:
            raise _LeavingError("its socket was removed")
        if not self._keepers and time.monotonic() - self._idle_since > self._idle_s:
            raise _LeavingError(f"no job for {self._idle_s:g} s")
        self._check_code()

    def _check_code(self) -> None:
        now = code_on_disk(self._options.interpreter)
        changed = [name for name, value in now.items() if self._options.parts.get(name) != value]
        if changed:
            raise _LeavingError(f"what it imported has changed on disk since: {', '.join(changed)}")

    def _check_sound(self) -> None:
        check_forkable()
        memory = resident_mb()
        if memory > self._options.memory_mb:
            raise _LeavingError(f"it holds {memory} MB, more than its {self._options.memory_mb}")


def _acquire(lock: FileLock) -> bool:
    """A probe of the lock holds it for an instant, so one try is not enough."""
    give_up = time.monotonic() + _LOCK_PATIENCE_S
    while not lock.try_acquire():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.02)
    return True
