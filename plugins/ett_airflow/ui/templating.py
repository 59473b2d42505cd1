"""The templates of the pages, on top of the report's own: one set of filters, words and drawn pieces."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from ett_reports.render.html import environment
from ett_reports.render.untrusted import printable
from ett_reports.slo import TITLE


@cache
def _templates() -> jinja2.Environment:
    report = environment()
    loaders = [jinja2.PackageLoader("ett_airflow.ui"), report.loader]
    templates = report.overlay(loader=jinja2.ChoiceLoader([each for each in loaders if each is not None]))
    templates.filters["printable"] = lambda value: printable(str(value))
    templates.globals["titles"] = TITLE
    return templates


def rendered(template: str, **values: Any) -> str:
    """A template with its values; every text among them is escaped."""
    page: str = _templates().get_template(template).render(**values)
    return page
