"""Airflow notifiers as the spec names them: any class of that kind, made and called with an alert at hand."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseNotifier

from ett_airflow.alert_message import Alert
from trainer.spec import Notifier

PATIENCE_S = 40.0
"""How long one notifier may take; a report does not wait forever for a mail server, a DAG processor 50 s at most."""


class NotifierError(RuntimeError):
    """A notifier that cannot be made, or that did not send; the message names it and says what to do."""


@dataclass(frozen=True)
class SpecNotifier:
    """One entry of the spec's `alerts.notifiers`."""

    entry: Notifier

    @property
    def key(self) -> str:
        """Its identity in the state: one that was changed (another address, say) is told anew what is broken."""
        exact = json.dumps(self.entry.model_dump(mode="json"), sort_keys=True)
        return f"{self.entry.notifier.rpartition('.')[2]}-{hashlib.sha256(exact.encode()).hexdigest()[:12]}"

    def wants(self, alert: Alert) -> bool:
        """Whether the alert's owner is one of its teams."""
        return not self.entry.teams or alert.team in self.entry.teams

    def send(self, alert: Alert, context: Mapping[str, Any]) -> None:
        """Make the notifier and call it; its arguments are rendered with Airflow's context and `alert`.

        What jobs wrote reaches the templates as values only, so that braces in a message stay braces.

        Raises:
            NotifierError: whatever went wrong.
        """
        outcome: list[BaseException] = []

        def call() -> None:
            try:
                self._call({**context, "alert": alert})
            except BaseException as error:
                outcome.append(error)

        caller = threading.Thread(target=contextvars.copy_context().run, args=(call,), daemon=True)
        caller.start()
        caller.join(PATIENCE_S)
        if caller.is_alive():
            raise NotifierError(f"{self.entry.notifier}: gave no answer within {PATIENCE_S:.0f} s")
        if outcome:
            error = outcome[0]
            raise NotifierError(f"{self.entry.notifier}: {type(error).__name__}: {error}") from error

    def _call(self, context: dict[str, Any]) -> None:
        notifier = self._made()
        if type(notifier).notify is not BaseNotifier.notify:
            notifier(context)
            return
        notifier.context = context  # type: ignore[assignment]
        asyncio.run(_awaited(notifier))

    def _made(self) -> BaseNotifier:
        module, _, name = self.entry.notifier.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
            raise NotifierError(f"{self.entry.notifier} is no notifier: name a subclass of airflow.sdk.BaseNotifier")
        return kind(**self.entry.arguments)


async def _awaited(notifier: BaseNotifier) -> None:
    """For notifiers that can only be awaited."""
    await notifier
