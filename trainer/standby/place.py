"""Where the standby of this $ETT_HOME is found: its folder, lock, record and socket."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trainer.launch.file_lock import FileLock, locked_elsewhere
from trainer.launch.records import read_record, write_record

_PRIVATE = 0o700
_LOG_BYTES = 1 << 20
_SAME_START_S = 1.0
RECORD_VERSION = 1


class PlaceError(Exception):
    """The standby's folder cannot be trusted; says whose it is, or who may write there."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a standby says about itself when it begins.

    Attributes:
        parts: its identity, part by part.
    """

    pid: int
    started: float
    parts: Mapping[str, str]

    @property
    def process(self) -> psutil.Process | None:
        """Its process, if it is still there."""
        try:
            process = psutil.Process(self.pid)
            return process if abs(process.create_time() - self.started) < _SAME_START_S else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True)
class StandbyPlace:
    """`$ETT_HOME/local/standby`, for its owner's eyes only."""

    root: Path

    @property
    def socket_path(self) -> Path:
        """Exists while the standby takes jobs, or after it was killed."""
        return self.root / "socket"

    @property
    def log_path(self) -> Path:
        return self.root / "standby.log"

    @property
    def _record_path(self) -> Path:
        return self.root / "standby.json"

    @property
    def _lock_path(self) -> Path:
        return self.root / "standby.lock"

    def lock(self) -> FileLock:
        """Held by the standby from its first moment to its last: there is one at most."""
        return FileLock(self._lock_path)

    @property
    def taken(self) -> bool:
        """Whether a standby is here, be it ready or still importing."""
        return locked_elsewhere(self._lock_path)

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            PlaceError: it is another user's, or others may write there.
        """
        self.root.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self.root.mkdir(mode=_PRIVATE, exist_ok=True)
        self.check_private()

    def check_private(self) -> None:
        """Whoever else may write here could have us run their code. Raises PlaceError."""
        found = self.root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PlaceError(
                f"{self.root} must be a folder of user {os.geteuid()} alone (mode 0700); it is user {found.st_uid}'s "
                f"with mode {stat.S_IMODE(found.st_mode):04o}. Remove it"
            )

    def record(self) -> Record | None:
        """What the newest standby says of itself; it may be gone."""
        try:
            found = read_record(self._record_path)
        except (OSError, ValueError):
            return None
        if found is None or found.get("version") != RECORD_VERSION:
            return None
        return Record(pid=found["pid"], started=found["started"], parts=found["parts"])

    def write_record(self, parts: Mapping[str, str]) -> None:
        own: dict[str, Any] = {"pid": os.getpid(), "started": psutil.Process().create_time(), "parts": dict(parts)}
        write_record(self._record_path, {"version": RECORD_VERSION, **own})

    @contextmanager
    def short_socket_path(self) -> Iterator[str]:
        """The socket's path within the 107 bytes that its address may have, however deep $ETT_HOME lies."""
        descriptor = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{self.socket_path.name}"
        finally:
            os.close(descriptor)

    def connect(self, timeout_s: float) -> socket.socket:
        """A connection to the standby. Raises OSError if none takes jobs, PlaceError if it is another user's."""
        self.check_private()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            with self.short_socket_path() as path:
                connection.connect(path)
            check_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def open_log(self) -> int:
        """A descriptor of the log, which begins anew once it is long."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES:
            flags |= os.O_TRUNC
        return os.open(self.log_path, flags, 0o600)


def check_peer(connection: socket.socket) -> None:
    """Raises PlaceError unless the process at the other end is this user's."""
    layout = struct.Struct("iII")  # pid, uid, gid
    _, uid, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    if uid != os.geteuid():
        raise PlaceError(f"the other end of the standby's socket is user {uid}, we are user {os.geteuid()}")
