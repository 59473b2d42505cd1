"""Whose compiled code is run: an archive holds pickles and machine code, so it is used only if nobody else wrote it.

Two proofs count. On a file system, the file and its folder belong to this user (or root) and nobody else may write
them. Anywhere, a seal made with the key in `$ETT_ARCHIVE_KEY_FILE`. An object store tells nothing about who wrote an
object, so there only the seal counts. What is proved are the bytes already read, and only those are unpacked.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KEY_VARIABLE = "ETT_ARCHIVE_KEY_FILE"
SEAL_VERSION = 1

_LEAST_KEY_BYTES = 16
_NO_MAC = "-" * 64
_PURPOSE = b"ett-seal\x00"
_SEAL = re.compile(rb"\nett-seal (\d{1,4}) ([0-9a-f]{64}) ([0-9a-f]{64}|-{64})\n\Z")
_SEAL_BYTES = 256
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(Exception):
    """A file that is not used, since it may be another's or is not what was written; says why and what to do."""

    def __init__(self, name: object, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


class SigningKeyError(Exception):
    """The file named by `$ETT_ARCHIVE_KEY_FILE` holds no usable key."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"${KEY_VARIABLE} is {path}: {why}; make it with: (umask 077; openssl rand 32 > {path})")
        self.path, self.why = path, why


@dataclass(frozen=True)
class SigningKey:
    """The secret that seals archives: all who may write them have it, and nobody else."""

    secret: bytes

    def __repr__(self) -> str:
        return "SigningKey(...)"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SigningKey | None:
        """The key in the file that `$ETT_ARCHIVE_KEY_FILE` names; None where it is not set.

        Raises:
            SigningKeyError: no such file, one that others can read, or too short a key.
        """
        if not (named := environment.get(KEY_VARIABLE)):
            return None
        path = Path(named)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SigningKeyError(path, f"cannot be opened ({error.strerror})") from error
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SigningKeyError(path, "is no plain file")
            if status.st_uid not in _own_users() or status.st_mode & 0o077:
                raise SigningKeyError(path, "must belong to this user and be readable by nobody else (chmod 600)")
            secret = file.read(1 << 16)
        if len(secret) < _LEAST_KEY_BYTES:
            raise SigningKeyError(path, f"holds {len(secret)} bytes, fewer than {_LEAST_KEY_BYTES}")
        return cls(secret)

    def mac(self, name: str, body: bytes) -> str:
        """HMAC-SHA256 of a file by its name, so that no sealed file can stand in for another."""
        return hmac.new(self.secret, _PURPOSE + name.encode() + b"\x00" + body, hashlib.sha256).hexdigest()


def sealed(name: str, body: bytes, key: SigningKey | None) -> bytes:
    """`body` with its seal behind it: a digest, which shows damage, and with a key who wrote it."""
    digest = hashlib.sha256(body).hexdigest()
    mac = key.mac(name, body) if key else _NO_MAC
    return body + f"\nett-seal {SEAL_VERSION} {digest} {mac}\n".encode()


def opened_seal(name: str, content: bytes, key: SigningKey | None, *, doubt: str | None) -> bytes:
    """The body of `content`, once it is proved.

    `doubt`: why the place alone does not prove who wrote it; None where it does.

    Raises:
        UntrustedFileError: torn, altered, sealed with another key, of a newer format, or not sealed where it must be.
    """
    found = _SEAL.search(content[-_SEAL_BYTES:])
    if not found:
        raise UntrustedFileError(name, "it is torn, or no archive of this format")
    version, digest, mac = int(found[1]), found[2].decode(), found[3].decode()
    if version != SEAL_VERSION:
        raise UntrustedFileError(name, f"its seal is of format {version}; this release knows {SEAL_VERSION}")
    body = content[: len(content) - len(found[0])]
    if key and mac != _NO_MAC:
        if not hmac.compare_digest(mac, key.mac(name, body)):
            raise UntrustedFileError(name, f"it is altered, or sealed with another key than ${KEY_VARIABLE} names")
        return body
    if doubt:
        raise UntrustedFileError(name, f"{doubt}, and {_no_proof(key)}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise UntrustedFileError(name, "it is damaged: its digest is another")
    return body


def _no_proof(key: SigningKey | None) -> str:
    return "it is not sealed" if key else f"there is no key to prove it with (${KEY_VARIABLE})"


def read_once(path: Path, *, limit: int) -> tuple[bytes, str | None]:
    """A file's bytes, and why its place does not prove that this user wrote them (None where it does).

    Looked at are the open file and folder, never their names a second time.

    Raises:
        FileNotFoundError: there is none.
        UntrustedFileError: a symbolic link or no plain file, or larger than `limit`.
        OSError: it cannot be read.
    """
    folder = _open(path.parent, os.O_DIRECTORY)
    try:
        doubt = _doubt(os.fstat(folder), f"its folder {path.parent}")
        descriptor = _open(path, 0, inside=folder)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedFileError(path, "it is no plain file")
            if status.st_size > limit:
                raise UntrustedFileError(path, f"it has {status.st_size} bytes, more than {limit}")
            return file.read(limit + 1), doubt or _doubt(status, "it")
    finally:
        os.close(folder)


def _open(path: Path, flags: int, *, inside: int | None = None) -> int:
    always = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path if inside is None else path.name, always | flags, dir_fd=inside)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            raise UntrustedFileError(path, "it is a symbolic link, which may lead anywhere") from error
        raise


def _doubt(status: os.stat_result, what: str) -> str | None:
    if status.st_uid not in _own_users():
        return f"{what} belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS_MAY_WRITE:
        return f"others may write {what if what != 'it' else 'to it'} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _own_users() -> tuple[int, ...]:
    return (os.geteuid(), 0)
