"""Ranks that a standby's keeper forks for a supervisor: they look to it as processes that it started itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

import psutil

from trainer.standby.messages import Kind, Message, MessageError, receive, send

_ANSWER_PATIENCE_S = 20.0


class NotStartedError(Exception):
    """The keeper did not start a rank, which can be started otherwise; says why."""


class BorrowedKeeper:
    """The connection to a job's keeper. The kernel closes it with this process, and the keeper then ends the ranks."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._connection.settimeout(_ANSWER_PATIENCE_S)
        self._process = psutil.Process(pid)
        self._ended: dict[int, int] = {}
        self.gone = False

    def fileno(self) -> int:
        """To be polled: readable when there is news."""
        return self._connection.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, files: Sequence[int]
    ) -> KeptRank:
        """Have `python -m module *arguments` run in a forked process, writing to `files` (stdout, stderr).

        Raises:
            NotStartedError: it does not run.
        """
        fields = {"module": module, "arguments": arguments, "environment": dict(environment), "folder": folder}
        try:
            send(self._connection, Kind.START, files=files, **fields)
            while (message := receive(self._connection)) is not None and self._noted(message):
                pass
        except (OSError, MessageError) as error:
            self.close()  # the keeper ends what it may have started
            raise NotStartedError(f"the keeper does not answer: {error}") from error
        if message is None:
            self.close()
            raise NotStartedError("the keeper is gone")
        if message.kind is not Kind.STARTED:
            raise NotStartedError(str(message.fields.get("why")))
        return KeptRank(self, message.fields["pid"])

    def ended(self, pid: int) -> int | None:
        """The exit code of a rank, once the keeper has told it; negative for a signal."""
        self._read_news()
        return self._ended.get(pid)

    def _read_news(self) -> None:
        try:
            while not self.gone and select.select([self._connection], [], [], 0)[0]:
                message = receive(self._connection)
                if message is None:
                    self.close()
                else:
                    self._noted(message)
        except (OSError, MessageError):
            self.close()

    def _noted(self, message: Message) -> bool:
        if message.kind is Kind.ENDED:
            self._ended[message.fields["pid"]] = message.fields["exit_code"]
            return True
        return False

    def descendants(self) -> list[psutil.Process]:
        """The ranks, what they started, and theirs."""
        try:
            return self._process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """The keeper ends whatever of the job is left, then itself."""
        self.gone = True
        self._connection.close()


class KeptRank:
    """As much of `subprocess.Popen` as a rank's supervisor and TorchX use."""

    def __init__(self, keeper: BorrowedKeeper, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._keeper = keeper
        self._watch = os.pidfd_open(pid)  # a zombie at worst: the keeper collects none

    def poll(self) -> int | None:
        """Its exit code; negative for a signal. A rank whose keeper is gone was killed with it."""
        if self.returncode is None:
            self.returncode = self._keeper.ended(self.pid)
            if self.returncode is None and self._keeper.gone:
                if select.select([self._watch], [], [], 0)[0]:
                    self.returncode = -signal.SIGKILL
                else:
                    self.send_signal(signal.SIGKILL)
            if self.returncode is not None:
                os.close(self._watch)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise subprocess.TimeoutExpired("a kept rank", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watch, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
