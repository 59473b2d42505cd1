"""Advisory locks on files: the kernel frees them when their holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from trainer.launch.errors import RecordWriteError

_PRIVATE = 0o600


class FileLock:
    """An exclusive `flock`; held until released or until this process is gone. Child processes do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        return self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def acquire(self) -> None:
        """Wait for the lock."""
        self._acquire(fcntl.LOCK_EX)

    def _acquire(self, operation: int) -> bool:
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        except OSError as error:
            raise RecordWriteError(str(self.path), error) from error
        try:
            fcntl.flock(descriptor, operation)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                return False
            raise
        self._descriptor = descriptor
        return True

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def locked_elsewhere(path: Path) -> bool:
    """Whether a process holds the lock. Probes with a shared lock for an instant, so takers must try more than once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return True
        raise
    finally:
        os.close(descriptor)
    return False
