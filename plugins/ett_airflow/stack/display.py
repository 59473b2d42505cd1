"""What `make refresh` shows: one live line on a terminal, a line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ett_airflow.stack.following import Samples, Snapshot

_MARKS = {
    "success": ("✔", "green"),
    "failed": ("✘", "red"),
    "upstream_failed": ("·", "red"),
    "skipped": ("-", "dim"),
    "up_for_retry": ("↻", "yellow"),
    "running": ("▶", "cyan"),
    "deferred": ("▶", "cyan"),
    "queued": ("…", "cyan"),
    "scheduled": ("…", "cyan"),
}
_QUIET_LINE_S = 10.0


class Display:
    """Use as a context manager; `say` is kept on screen, `show` is replaced by the next one."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._began = time.monotonic()
        self._live: Live | None = None
        self._told: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def waiting(self, what: str) -> None:
        """Something without tasks yet: preparation, start-up."""
        self._show(Text(f"{self._elapsed()}  {what}"), changed=what)

    def show(self, snapshot: Snapshot) -> None:
        """The run: each task's state, then samples."""
        line = Text(f"{self._elapsed()}  ")
        line.append_text(_tasks(snapshot.tasks))
        if snapshot.samples is not None and snapshot.tasks.get("train") not in (None, "success"):
            line.append("  " + samples_text(snapshot.samples))
        self._show(line, changed=str(snapshot.tasks))

    def _show(self, line: Text, changed: str) -> None:
        if self._live is not None:
            self._live.update(line)
            return
        now = time.monotonic()
        before, at = self._told
        if changed != before or now - at >= _QUIET_LINE_S:
            self._told = (changed, now)
            self.console.print(line, soft_wrap=True)

    def _elapsed(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60:d}:{seconds % 60:02d}"


def _tasks(states: Mapping[str, str | None]) -> Text:
    text = Text()
    for task, state in states.items():
        mark, style = _MARKS.get(state or "", ("·", "dim"))
        text.append(f"{mark} {task}  ", style=style)
    return text


def samples_text(samples: Samples) -> str:
    """`12,345 / 200,000 samples (6%), 4,321/s`."""
    planned = f" / {samples.planned:,}" if samples.planned else ""
    share = f" ({100 * samples.done / samples.planned:.0f}%)" if samples.planned else ""
    rate = f", {samples.per_second:,.0f}/s" if samples.per_second else ""
    return f"{samples.done:,}{planned} samples{share}{rate}"
