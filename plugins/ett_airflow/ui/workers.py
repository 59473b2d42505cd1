"""A few worker processes, each of which may be busy for so long and no longer: in CPU time, and by the clock."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ett_airflow.ui.question import Answer, Question
from ett_airflow.ui.worker import CPU_S

LIMIT_S = 120.0
MOST = 2
_CHUNK = 1 << 20
_LAST_MOMENT_S = 5.0


class WorkerError(RuntimeError):
    """No answer: the message says why, for people."""


class TooLongError(WorkerError):
    """The work was ended at its limit."""

    def __init__(self, limit_s: float, of: str) -> None:
        super().__init__(f"Reducing this log takes longer than {limit_s:g} s{of}.")


class _GoneError(Exception):
    """The process has ended."""


@dataclass
class Workers:
    """Up to `most` processes, started when they are needed; each question has `limit_s` seconds."""

    most: int = MOST
    limit_s: float = LIMIT_S
    _idle: queue.LifoQueue[_Worker | None] = field(default_factory=queue.LifoQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _filled: bool = False

    def ask(self, question: Question) -> Answer:
        """Blocks until the answer is there; waits for a free worker first.

        Raises:
            WorkerError: the worker took too long, or died of the question.
        """
        self._fill()
        worker = self._idle.get()
        try:
            worker, answer = self._answered(worker, question)
            return answer
        except WorkerError:
            worker = None
            raise
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the idle processes; those at work end with their answer, as nobody listens to them any more."""
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                break
            if worker is not None:
                worker.end()
        self._filled = False

    def _answered(self, worker: _Worker | None, question: Question) -> tuple[_Worker, Answer]:
        if worker is not None:
            try:
                return worker, worker.ask(question, self.limit_s)
            except _GoneError:
                pass  # it had nothing to do for a while and left
        worker = _Worker()
        try:
            return worker, worker.ask(question, self.limit_s)
        except _GoneError:
            raise WorkerError(
                "The process that reduces logs died of this one; the API server's log may say why."
            ) from None

    def _fill(self) -> None:
        with self._lock:
            if not self._filled:
                self._filled = True
                for _ in range(self.most):
                    self._idle.put(None)


class _Worker:
    """One process and its two pipes."""

    def __init__(self) -> None:
        # Airflow puts its plugins folder on the path of this process; the worker finds the same modules.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ett_airflow.ui.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )

    def ask(self, question: Question, limit_s: float) -> Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(question.to_line())
        except OSError:
            self.end()
            raise _GoneError from None
        return Answer.from_line(self._line(time.monotonic() + limit_s, limit_s))

    def end(self) -> None:
        """Kill and reap it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, deadline: float, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            ready = select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                self.end()
                raise TooLongError(limit_s, "")
            part = os.read(source, _CHUNK)
            if not part:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LAST_MOMENT_S)  # its pipe closes a moment before the kernel says what ended it
                self.end()
                if self._process.returncode == -signal.SIGPROF:
                    raise TooLongError(CPU_S, " of CPU time")
                raise _GoneError
            parts.append(part)
        return b"".join(parts)
