"""A job's keeper: parent of the job's warm ranks, which live no longer than it, nor it than its supervisor."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import traceback
from contextlib import suppress
from typing import NoReturn

from trainer.launch.processes import adopt_orphans, descendants, end_all
from trainer.standby.forked_rank import RankOrder, become, run
from trainer.standby.messages import Kind, Message, MessageError, receive, send

_FORK_PATIENCE_S = 10.0
_READY = b"+"

log = logging.getLogger(__name__)


class Keeper:
    """Forks ranks as told over the connection, says how each ended, and ends what is left when the other end is gone.

    A rank that ended stays a zombie until the keeper leaves: its process id cannot come to mean another process while
    the supervisor may still send it signals.
    """

    def __init__(self, connection: socket.socket, *, threads: int) -> None:
        self._connection = connection
        self._threads = threads
        self._ranks: dict[int, int] = {}  # pid by the descriptor that tells of its end
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def serve(self) -> None:
        """Returns when the supervisor has hung up and no process of the job is left."""
        adopt_orphans()
        try:
            send(self._connection, Kind.LENT, pid=os.getpid())
            while self._serve_once():
                pass
        except (OSError, MessageError) as error:
            log.info("keeper %d: %s", os.getpid(), error)
        finally:
            end_all(descendants)

    def _serve_once(self) -> bool:
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        for descriptor in ready:
            if descriptor in self._ranks:
                self._tell_end(descriptor)
        if self._connection.fileno() in ready:
            message = receive(self._connection)
            if message is None:
                return False
            self._obey(message)
        return True

    def _tell_end(self, descriptor: int) -> None:
        pid = self._ranks.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        send(self._connection, Kind.ENDED, pid=pid, exit_code=ended.si_status if exited else -ended.si_status)

    def _obey(self, message: Message) -> None:
        try:
            if message.kind is not Kind.START or len(message.files) != 2:
                raise MessageError(f"a keeper understands `start` with two files, not {message.kind}")
            self._start(message)
        finally:
            for descriptor in message.files:
                os.close(descriptor)

    def _start(self, message: Message) -> None:
        order = RankOrder(**message.fields, threads=self._threads)
        told, tell = os.pipe()
        keeper, pid = os.getpid(), os.fork()
        if pid == 0:
            self._connection.detach()  # closed below; not again when that number means another file
            _be_rank(order, message.files, keeper, tell)
        os.close(tell)
        refusal = _answer(told)
        os.close(told)
        if refusal:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            send(self._connection, Kind.REFUSED, why=refusal)
            return
        descriptor = os.pidfd_open(pid)
        self._ranks[descriptor] = pid
        self._poll.register(descriptor, select.POLLIN)
        send(self._connection, Kind.STARTED, pid=pid)


def _be_rank(order: RankOrder, files: tuple[int, ...], keeper: int, tell: int) -> NoReturn:
    """In the forked process."""
    try:
        become(order, *files, keeper=keeper, keep=tell)
    except BaseException as error:
        traceback.print_exc()
        os.write(tell, f"{type(error).__name__}: {error}"[:1000].encode())
        os._exit(1)
    os.write(tell, _READY)
    os.close(tell)
    run(order)


def _answer(told: int) -> str:
    """What kept the forked process from being a rank; empty if nothing did."""
    readable, _, _ = select.select([told], [], [], _FORK_PATIENCE_S)
    if not readable:
        return "the forked process does not answer"
    answer = os.read(told, 1000)
    return "" if answer == _READY else answer.decode() or "the forked process died"
