"""The frame around every page: its policy, its look, and how it is sent."""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse

_HERE = Path(__file__).parent / "templates"
_DARK = "@media (prefers-color-scheme: dark) {\n  :root {"
SENT_WITH = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def page(template: str, *, title: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page. Scripts and styles are ours alone, each let in by a nonce that is drawn anew for every answer."""
    from ett_airflow.ui.templating import rendered  # Airflow imports this plugin in every process; few show pages

    nonce = secrets.token_urlsafe(16)
    frame = {"nonce": nonce, "style": style(), "theme": _script("theme.js"), "live": _script("live.js")}
    html = rendered(template, title=title, **frame, **values)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )
    return HTMLResponse(html, status_code=status, headers=SENT_WITH | {"Content-Security-Policy": policy})


def fragment(template: str, *, headers: dict[str, str] | None = None, **values: Any) -> HTMLResponse:
    """A piece that a page of ours puts into itself; opened by itself it may load and run nothing."""
    from ett_airflow.ui.templating import rendered

    policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
    return HTMLResponse(rendered(template, **values), headers=SENT_WITH | policy | (headers or {}))


@cache
def style() -> Any:
    """The report's style sheet with Airflow's colours and fonts laid over it, light or dark as `data-theme` says."""
    from markupsafe import Markup

    from ett_reports.render.html import report_css

    return Markup(themed(report_css()) + (_HERE / "pages.css").read_text(encoding="utf-8"))


def themed(css: str) -> str:
    """The dark colours for who chose dark, whatever the system prefers; the system's choice only where nobody chose."""
    before, found, after = css.partition(_DARK)
    if not found:
        raise ValueError("the report's style sheet has no dark colours where they are looked for")
    dark, _, rest = after.partition("}\n}")
    unless_light = f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{dark}}} }}"
    chosen = f"@media screen {{ :root[data-theme=dark] {{{dark}}} }}"
    return f"{before}{unless_light}\n{chosen}{rest}"


@cache
def _script(name: str) -> Any:
    from markupsafe import Markup

    return Markup((_HERE / name).read_text(encoding="utf-8"))
