"""A notifier of a user's own: appends what it is told to a file, and fails while a file named `down` lies beside it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


class RecordingNotifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, *, path: str, text: str = "{{ alert.headline }}", seconds: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path, self.text, self.seconds = path, text, seconds

    def notify(self, context: Any) -> None:
        self.record()

    def record(self) -> None:
        path = Path(self.path)
        if (path.parent / "down").exists():
            raise ConnectionRefusedError("the chat server is down")
        time.sleep(self.seconds)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(self.text) + "\n")


class AwaitedNotifier(BaseNotifier):
    """One that can only be awaited."""

    template_fields = ("text",)

    def __init__(self, *, path: str, text: str = "{{ alert.headline }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path, self.text = path, text

    async def async_notify(self, context: Any) -> None:
        RecordingNotifier(path=self.path, text=self.text).record()


class NoNotifier:
    """Not one."""
