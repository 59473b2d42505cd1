"""What an alert says: one trouble, or its end, as plain values and as the texts that a notifier sends."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ett_reports.render.untrusted import printable

LONGEST = 400
RUNBOOK = "docs/runbook.md"


class AlertKind(StrEnum):
    """A service level or the refresh itself, and whether it went wrong or came right."""

    BROKEN = "broken"
    MENDED = "mended"
    FAILED = "failed"
    RECOVERED = "recovered"
    LATE = "late"
    FRESH = "fresh"

    @property
    def is_trouble(self) -> bool:
        return self in (AlertKind.BROKEN, AlertKind.FAILED, AlertKind.LATE)

    @property
    def is_of_run(self) -> bool:
        """About the refresh as a whole, not about one of its service levels."""
        return self in (AlertKind.FAILED, AlertKind.RECOVERED)


_HEADLINES = {
    AlertKind.BROKEN: "{title} broke its service level: {figure}, limit {limit}",
    AlertKind.MENDED: "{title} keeps its service level again: {figure}, limit {limit}",
    AlertKind.FAILED: "the refresh failed: {figure}",
    AlertKind.RECOVERED: "the refresh succeeds again",
    AlertKind.LATE: "no fresh model: {figure}",
    AlertKind.FRESH: "the model is fresh again",
}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One message. Every text may hold what a job wrote: it is made printable here, and escaped in `html`.

    Attributes:
        window_end: end of the run's data window, ISO date, exclusive: no earlier one undoes what a later run said.
        subject: what it is about: a component of the refresh, or the refresh itself.
        sign: tells one trouble of a subject from another; while it stays the same nobody is told again.
        figure, limit: what was measured and what was allowed, with their units.
        suspect: the first thing to look at.
        section: of docs/runbook.md.
    """

    kind: AlertKind
    refresh: str
    run: str
    window_end: str
    subject: str
    title: str
    sign: str = ""
    team: str = ""
    contact: str = ""
    figure: str = ""
    limit: str = ""
    suspect: str = ""
    section: str = ""
    run_url: str = ""
    report_url: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is str:
                object.__setattr__(self, name, printable(value, LONGEST))

    @property
    def is_trouble(self) -> bool:
        return self.kind.is_trouble

    @property
    def owner(self) -> str:
        if not self.team:
            return "nobody (no owner in the spec)"
        return f"{self.team} ({self.contact})" if self.contact else self.team

    @property
    def headline(self) -> str:
        """One line: a subject of a mail, a chat message."""
        told = _HEADLINES[self.kind].format(title=self.title, figure=self.figure, limit=self.limit)
        return printable(f"{self.refresh}: {told}", 200)

    @property
    def text(self) -> str:
        """All of it, a fact per line."""
        return "\n".join([self.headline, "", *(f"{name}: {value}" for name, value in self._facts() if value)])

    @property
    def html(self) -> str:
        """The same for mails, with every text escaped."""
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{_linked(value)}</td></tr>" for name, value in self._facts() if value
        )
        return f"<p><b>{html.escape(self.headline)}</b></p><table>{rows}</table>"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kind": str(self.kind)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Alert:
        return cls(**{**data, "kind": AlertKind(data["kind"])})

    def _facts(self) -> list[tuple[str, str]]:
        runbook = f"{RUNBOOK}#{self.section}" if self.section else ""
        return [
            ("Owner", self.owner),
            ("Figure", self.figure),
            ("Limit", self.limit),
            ("First suspect" if self.is_trouble else "Still to do", self.suspect),
            ("Run", f"{self.run}, data up to {self.window_end} (exclusive)"),
            ("Run page", self.run_url),
            ("ETT report", self.report_url),
            ("What to do", runbook),
        ]


def _linked(value: str) -> str:
    escaped = html.escape(value)
    return f'<a href="{escaped}">{escaped}</a>' if value.startswith(("http://", "https://")) else escaped
