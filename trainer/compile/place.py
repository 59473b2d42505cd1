"""Where archives are, on a file system or in an object store: read once and proved, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.atomic_file import replacing
from trainer.compile.trust import (
    KEY_VARIABLE,
    SigningKey,
    SigningKeyError,
    UntrustedFileError,
    opened_seal,
    read_once,
    sealed,
)
from trainer.storage import StoragePath, naming, read, size_of

log = logging.getLogger(__name__)

MOST_BYTES = 4 << 30
MOST_NOTE_BYTES = 4 << 20

_told: set[str] = set()


@dataclass(frozen=True)
class ArchivePlace:
    """A folder of archives that all runs of a refresh share."""

    folder: StoragePath

    @cached_property
    def key(self) -> SigningKey | None:
        """The key that seals archives; one that cannot be used counts as none, and is told once."""
        try:
            return SigningKey.from_environment()
        except SigningKeyError as error:
            _tell_once(str(error))
            return None

    @cached_property
    def closed_because(self) -> str | None:
        """Why nothing is read or written here at all; None where it may be."""
        if isinstance(self.folder, Path) or self.key:
            return None
        why = f"{self.folder}: anyone with access to the store may write there, and ${KEY_VARIABLE} names no key"
        _tell_once(f"compiled code is neither read nor kept in {why}")
        return why

    def proved(self, name: str) -> bytes:
        """The body of a sealed file.

        Raises:
            FileNotFoundError: there is none.
            UntrustedFileError: it is not used.
            OSError: it cannot be read.
        """
        if self.closed_because:
            raise UntrustedFileError(name, self.closed_because)
        content, doubt = self._content(name)
        return opened_seal(name, content, self.key, doubt=doubt)

    def keep(self, name: str, body: bytes) -> int:
        """Write a sealed file in one step. Returns its bytes.

        Raises:
            UntrustedFileError: nothing is kept here.
            OSError: it cannot be written.
        """
        if self.closed_because:
            raise UntrustedFileError(name, self.closed_because)
        content = sealed(name, body, self.key)
        self._write(name, content)
        return len(content)

    def note(self, name: str) -> Any:
        """A JSON note, which decides nothing and so needs no proof; None where there is none that can be read."""
        if self.closed_because:
            return None
        path = self.folder / name
        try:
            return json.loads(read(path)) if size_of(path) <= MOST_NOTE_BYTES else None
        except (OSError, ValueError, RecursionError):
            return None

    def write_note(self, name: str, value: Any) -> None:
        """Raises OSError."""
        if not self.closed_because:
            self._write(name, json.dumps(value, indent=1, sort_keys=True).encode())

    def notes(self, prefix: str) -> list[str]:
        """Names of notes, the newest first; none where the place cannot be listed."""
        if self.closed_because:
            return []
        try:
            with naming(self.folder):
                found = sorted(self._dated(prefix), reverse=True)
        except OSError:
            return []
        return [name for _, name in found]

    def _dated(self, prefix: str) -> list[tuple[float, str]]:
        if isinstance(self.folder, Path):
            return [(path.stat().st_mtime_ns, path.name) for path in self.folder.glob(f"{prefix}*.json")]
        entries = self.folder.fs.ls(self.folder.path, detail=True, refresh=True)
        dated = [(entry["LastModified"].timestamp(), entry["name"].rsplit("/", 1)[-1]) for entry in entries
                 if entry["type"] == "file"]  # fmt: skip
        return [(when, name) for when, name in dated if name.startswith(prefix) and name.endswith(".json")]

    def _content(self, name: str) -> tuple[bytes, str | None]:
        path = self.folder / name
        if isinstance(path, Path):
            return read_once(path, limit=MOST_BYTES)
        if (size := size_of(path)) > MOST_BYTES:
            raise UntrustedFileError(path, f"it has {size} bytes, more than {MOST_BYTES}")
        return read(path), "the store does not tell who wrote it"

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        if not isinstance(path, Path):
            with naming(path):
                path.fs.pipe_file(path.path, content)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(path.parent)
        with replacing(path) as aside:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)


def _close_to_others(folder: Path) -> None:
    """Nobody else may write to a folder of archives: what others can write is never read."""
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _tell_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        log.warning("%s", message)
