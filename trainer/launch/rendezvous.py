"""The port on which a job's ranks meet, distinct for every job of this machine."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass

from trainer.launch.errors import LaunchError

MASTER_ADDRESS = "127.0.0.1"
# Below Linux's ephemeral range: a port that is free now cannot be taken by somebody's outgoing connection.
_FIRST_PORT, _PORTS = 20000, 10000


@dataclass(frozen=True)
class MasterPort:
    """A port reserved among the jobs of this machine until released or until this process dies."""

    number: int
    _claim: socket.socket

    def release(self) -> None:
        self._claim.close()


def reserve_port(job: str) -> MasterPort:
    """Find a port nobody listens on. Two jobs starting at once never get the same one.

    Raises:
        LaunchError: none is free.
    """
    start = zlib.crc32(job.encode())
    for offset in range(_PORTS):
        port = _FIRST_PORT + (start + offset) % _PORTS
        if (claim := _claimed(port)) is None:
            continue
        if _free(port):
            return MasterPort(port, claim)
        claim.close()
    raise LaunchError(f"no free port in {_FIRST_PORT}-{_FIRST_PORT + _PORTS - 1}; end jobs or services that hold them")


def _claimed(port: int) -> socket.socket | None:
    """A claim to the port that every job of this machine sees, whatever its $ETT_HOME or user; None if there is one.

    Rank 0 binds the port seconds later, so its being free now says too little, and a lock on a file would be seen under
    this $ETT_HOME alone. An abstract socket's name reaches as far as the port, and the kernel takes it back.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0ett-master-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
