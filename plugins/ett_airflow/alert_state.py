"""What is broken in a refresh, and which notifier has been told so: `ROOT/<refresh>/alerts.json`."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ett_airflow.alert_message import Alert
from trainer.atomic_file import replace_text
from trainer.launch.file_lock import FileLock

log = logging.getLogger(__name__)

STATE_VERSION = 1
STATE_NAME = "alerts.json"
LOCK_NAME = ".alerts.lock"
LOCK_PATIENCE_S = 120.0


class AlertStateError(RuntimeError):
    """The state of a refresh's alerts cannot be had now; the message says why."""


@dataclass
class AlertState:
    """How every subject of a refresh stands, and what each notifier knows of it.

    Attributes:
        standing: the newest alert by subject, troubles and mended ones: from its window on it holds.
        told: notifier -> subject -> the `sign` of the trouble that it was told of and not yet told the end of.
    """

    standing: dict[str, Alert] = field(default_factory=dict)
    told: dict[str, dict[str, str]] = field(default_factory=dict)

    def observe(self, alert: Alert) -> None:
        """Take in what a run found. What a later window's run has found already is not changed by an earlier's.

        A failed run of an earlier window is a trouble of its own until that run is green.
        """
        newest = self.standing.get(alert.subject)
        if newest is None or alert.window_end >= newest.window_end:
            self.standing[alert.subject] = alert
        elif alert.kind.is_of_run:
            own = f"{alert.subject} {alert.run}"
            if alert.is_trouble or own in self.standing:
                self.standing[own] = alert

    def forget(self, subject: str) -> None:
        """A subject that is judged no more: its trouble ends without a word."""
        self.standing.pop(subject, None)
        for told in self.told.values():
            told.pop(subject, None)

    def troubles(self) -> list[Alert]:
        """What is broken now."""
        return [alert for alert in self.standing.values() if alert.is_trouble]

    def due(self, notifier: str) -> list[tuple[str, Alert]]:
        """What `notifier` has to be told, by subject: new troubles, other ones than before, and ends of told ones."""
        told = self.told.get(notifier, {})
        return [
            (subject, alert)
            for subject, alert in self.standing.items()
            if (told.get(subject) != alert.sign if alert.is_trouble else subject in told)
        ]

    def delivered(self, notifier: str, subject: str, alert: Alert) -> None:
        """`notifier` has been told."""
        told = self.told.setdefault(notifier, {})
        if alert.is_trouble:
            told[subject] = alert.sign
        else:
            told.pop(subject, None)

    def keep_notifiers(self, notifiers: set[str]) -> None:
        """Forget what notifiers were told that the spec names no more."""
        self.told = {notifier: told for notifier, told in self.told.items() if notifier in notifiers}

    def dumps(self) -> str:
        document = {
            "version": STATE_VERSION,
            "standing": {subject: alert.to_dict() for subject, alert in self.standing.items()},
            "told": self.told,
        }
        return json.dumps(document, indent=1, sort_keys=True) + "\n"


def read_state(refresh_root: Path) -> AlertState:
    """The state as it was last written. One that cannot be read counts as empty: told twice is better than never."""
    path = refresh_root / STATE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != STATE_VERSION:
            raise ValueError(f"version {document['version']!r}, this release reads {STATE_VERSION}")
        standing = {subject: Alert.from_dict(alert) for subject, alert in document["standing"].items()}
        told = {notifier: dict(known) for notifier, known in document["told"].items()}
    except FileNotFoundError:
        return AlertState()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s cannot be used (%s): starting anew, so an alert may come twice", path, error)
        return AlertState()
    return AlertState(standing, told)


def write_state(refresh_root: Path, state: AlertState) -> None:
    """Replace the state in one atomic step."""
    replace_text(refresh_root / STATE_NAME, state.dumps(), mode=0o600)


@contextlib.contextmanager
def exclusive(refresh_root: Path) -> Iterator[None]:
    """One sender at a time per refresh, so that two runs that end together do not both tell.

    Raises:
        AlertStateError: another sender has it for too long; what is due is told next time.
    """
    lock = FileLock(refresh_root / LOCK_NAME)
    give_up = time.monotonic() + LOCK_PATIENCE_S
    while not lock.try_acquire():
        if time.monotonic() > give_up:
            raise AlertStateError(f"another run of {refresh_root.name} has been sending alerts for {LOCK_PATIENCE_S} s")
        time.sleep(0.1)
    try:
        yield
    finally:
        lock.release()
