"""The port on which a job's ranks meet, distinct for every job of this machine."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass
from pathlib import Path

from trainer.launch.errors import LaunchError
from trainer.launch.file_lock import FileLock

MASTER_ADDRESS = "127.0.0.1"
# Below Linux's ephemeral range: a port that is free now cannot be taken by somebody's outgoing connection.
_FIRST_PORT, _PORTS = 20000, 10000


@dataclass(frozen=True)
class MasterPort:
    """A port reserved among our jobs until released or until this process dies."""

    number: int
    _lock: FileLock

    def release(self) -> None:
        self._lock.release()


def reserve_port(root: Path, job: str) -> MasterPort:
    """Find a port nobody listens on. Two jobs starting at once never get the same one.

    Raises:
        LaunchError: none is free.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    start = zlib.crc32(job.encode())
    for offset in range(_PORTS):
        port = _FIRST_PORT + (start + offset) % _PORTS
        lock = FileLock(root / str(port))
        if lock.try_acquire():
            if _free(port):
                return MasterPort(port, lock)
            lock.release()
    raise LaunchError(f"no free port in {_FIRST_PORT}-{_FIRST_PORT + _PORTS - 1}; end jobs or services that hold them")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
