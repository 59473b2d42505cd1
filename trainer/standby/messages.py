"""Messages between a supervisor and the standby or a keeper: one JSON object each, some with open files."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PROTOCOL = 1
_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 22
_MOST_FILES = 8


class Kind(StrEnum):
    """What a message is."""

    LEND = "lend"  # to the standby: be this connection's keeper
    RETIRE = "retire"  # to the standby: make room
    LENT = "lent"  # the keeper's first word, with its pid
    START = "start"  # to the keeper: fork a rank
    STARTED = "started"
    ENDED = "ended"  # a rank's exit code
    REFUSED = "refused"  # says why; nothing has happened


class MessageError(Exception):
    """The other end speaks another language, or has hung up."""


@dataclass(frozen=True)
class Message:
    """`files` are descriptors; whoever receives them closes them."""

    kind: Kind
    fields: dict[str, Any]
    files: tuple[int, ...] = ()


def send(connection: socket.socket, kind: Kind, *, files: Sequence[int] = (), **fields: Any) -> None:
    """Raises OSError, TimeoutError."""
    body = json.dumps({"kind": kind, "protocol": PROTOCOL, **fields}).encode()
    head = _LENGTH.pack(len(body))
    if files:
        socket.send_fds(connection, [head], files)
    else:
        connection.sendall(head)
    connection.sendall(body)


def receive(connection: socket.socket) -> Message | None:
    """The next message; None once the other end has hung up.

    Raises:
        MessageError: not a message of this protocol, or one cut short.
        OSError, TimeoutError: the connection failed.
    """
    head, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
    if not head:
        return None
    head += _exactly(connection, _LENGTH.size - len(head))
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        raise MessageError(f"a message of {length} bytes; at most {_LONGEST} are expected")
    body = _exactly(connection, length)
    try:
        fields = json.loads(body)
        protocol = fields.pop("protocol")
        kind = Kind(fields.pop("kind"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise MessageError(f"not a message: {error}") from error
    if protocol != PROTOCOL:
        raise MessageError(f"a message of protocol {protocol!r}, this code speaks {PROTOCOL}")
    return Message(kind, fields, tuple(files))


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 16))
        if not part:
            raise MessageError("the other end hung up in the middle of a message")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
