"""A real SMTP server on loopback that keeps what it is sent."""

from __future__ import annotations

import email
import email.policy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from ett_airflow.stack.settings import free_port


@dataclass
class Mailbox:
    """What has arrived, and what the server answers: `refusal`, if given, to every message."""

    port: int = 0
    received: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    refusal: str = ""

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow Connection to this server, as the API and the environment take it."""
        extra = {"disable_tls": True, "disable_ssl": True, "retry_limit": 1, "timeout": 5}
        return {
            "conn_type": "smtp",
            "host": "127.0.0.1",
            "port": self.port,
            "extra": json.dumps({**extra, "from_email": "airflow@example.com"}),
        }

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 (aiosmtpd's name)
        if self.refusal:
            return self.refusal
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.received.append((list(envelope.rcpt_tos), message))
        return "250 OK"

    @property
    def subjects(self) -> list[str]:
        return [str(message["subject"]) for _, message in self.received]


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    mailbox = Mailbox(port=free_port(0))
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
