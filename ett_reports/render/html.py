"""The report as one self-contained HTML file: no request leaves it, no script runs in it. Needs `jinja2`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from functools import cache
from importlib import resources
from types import SimpleNamespace
from typing import Any

import jinja2
from markupsafe import Markup

from ett_reports.advice import answer
from ett_reports.events import Component
from ett_reports.render import figures, words
from ett_reports.render.lanes import Block, Lane, Layer, Lifecycle, lifecycle, ticks
from ett_reports.render.terminal import last_metrics
from ett_reports.render.untrusted import printable, printable_tree
from ett_reports.report import JobReport, RefreshReport, TaskReport, TaskTry
from ett_reports.slo import Judgement

MOST_STRAGGLERS = 12


def render_html(
    job: JobReport,
    refresh: RefreshReport | None,
    judgement: Judgement,
    *,
    title: str,
    spec_summary: Mapping[str, Any] | None = None,
) -> str:
    """The whole page. Every text in it is untrusted: made printable here, escaped by the template."""
    style, policy = _style()
    shown = _shown(job, refresh, judgement, title, spec_summary)
    page: str = environment().get_template("report.html.j2").render(shown, style=style, policy=policy)
    return page


def render_body(
    job: JobReport,
    refresh: RefreshReport | None,
    judgement: Judgement,
    *,
    title: str,
    spec_summary: Mapping[str, Any] | None = None,
) -> str:
    """What `render_html` has between <body> and </body>, for a page of others; `report_css` is its style sheet."""
    shown = _shown(job, refresh, judgement, title, spec_summary)
    body: str = environment().get_template("report_body.html.j2").render(shown)
    return body


def _shown(
    job: JobReport,
    refresh: RefreshReport | None,
    judgement: Judgement,
    title: str,
    spec_summary: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The template's variables, with every free text made printable."""
    job, refresh, judgement = printable_tree(job), printable_tree(refresh), printable_tree(judgement)
    metrics = last_metrics(job.metrics)
    degraded = dict.fromkeys((*job.degraded, *(() if refresh is None else refresh.degraded)))
    return {
        "title": printable(title),
        "job": job,
        "refresh": refresh,
        "judgement": judgement,
        "answer": answer(job, judgement),
        "whole": whole_bar(job),
        "whole_parts": [(part, job.l2[part]) for part in _effective_first() if job.l2.get(part)],
        "life": lifecycle(job),
        "tasks": None if refresh is None else _task_lanes(refresh),
        "metrics": metrics,
        "metric_names": list(dict.fromkeys(name for one in metrics for name in one.values)),
        "degraded": list(degraded),
        "sources": [words.SOURCE[source] for source in job.sources],
        "blemishes": [(words.QUALITY[n], v) for n, v in asdict(job.quality).items() if v and n in words.QUALITY],
        "stragglers": sorted(job.stragglers, key=lambda one: -one.excess_ns)[:MOST_STRAGGLERS],
        "spec": list(flattened(spec_summary or {})),
    }


def flattened(summary: Mapping[str, Any], prefix: str = "") -> Any:
    """(dotted name, printable value) pairs of a nested mapping."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            yield printable(f"{prefix}{name}"), printable(shown)


@cache
def environment() -> jinja2.Environment:
    """The templates of the report, with the filters and words that they use; whatever goes in is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ett_reports.render"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        duration=figures.duration,
        seconds=figures.seconds,
        percent=figures.percent,
        share=figures.share,
        instant=figures.instant,
        count=figures.count,
        number=figures.number,
        plain=lambda value: f"{value:g}",
        width=lambda part, whole: round(100 * part / whole, 3) if whole else 0,
        heat=_heat,
    )
    environment.globals["words"] = SimpleNamespace(
        component=words.COMPONENT,
        component_meaning=words.COMPONENT_MEANING,
        level_1=words.LEVEL_1,
        level_1_meaning=words.LEVEL_1_MEANING,
        phase=words.PHASE,
        provenance_meaning=words.PROVENANCE_MEANING,
        source=words.SOURCE,
        health=words.HEALTH,
    )
    return environment


@cache
def _style() -> tuple[Markup, str]:
    """Our own style sheet, and the policy that lets nothing but it in."""
    style = report_css()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return Markup(style), policy


def report_css() -> str:
    """The report's style sheet."""
    return (resources.files("ett_reports.render") / "templates" / "report.css").read_text()


def _heat(part: int, whole: int) -> str:
    share = Fraction(part, whole) if whole else Fraction(0)
    if not part:
        return "zero"
    return next((name for name, least in (("h4", 0.3), ("h3", 0.1), ("h2", 0.02)) if share >= least), "h1")


def whole_bar(job: JobReport) -> Lane:
    """Wall time as one bar, by component: the effective part, then the others in the order of Table II."""
    blocks, left = [], 0.0
    for component in _effective_first():
        spent = job.l2.get(component, 0)
        if not spent or not job.wall_ns:
            continue
        width = 100 * spent / job.wall_ns
        name = words.COMPONENT[component]
        blocks.append(
            Block(
                left=round(left, 4),
                width=round(width, 4),
                layers=(Layer(paint=component.value, top=0, height=100),),
                title=f"{name}: {figures.duration(spent)}, {figures.share(spent, job.wall_ns)}",
                label=name if width > 9 else "",
            )
        )
        left += width
    return Lane(name="Wall time", note="", kind="whole", blocks=tuple(blocks))


def _effective_first() -> list[Component]:
    return sorted(Component, key=lambda part: part is not Component.EFFECTIVE_TRAINING)


def _task_lanes(refresh: RefreshReport) -> Lifecycle:
    lanes = tuple(
        Lane(
            name=task.task,
            note=figures.duration(task.interval_ns),
            kind="task",
            blocks=tuple(block for one in task.tries for block in _try_blocks(task, one, refresh.wall_ns)),
        )
        for task in refresh.tasks
    )
    return Lifecycle(lanes=lanes, ticks=ticks(refresh.wall_ns))


def _try_blocks(task: TaskReport, one: TaskTry, wall_ns: int) -> Any:
    end = task.end_ns if one.end_ns is None else one.end_ns
    code = end if one.code_start_ns is None else one.code_start_ns
    pieces = (
        ("retry", "retry wait", one.ready_ns - one.retry_wait_ns, one.ready_ns),
        ("queue", "queue", one.ready_ns, code),
        ("wasted" if one.wasted_ns else "run", "run or deferred", code, end),
    )
    for paint, name, start, stop in pieces:
        if stop > start:
            yield Block(
                left=round(100 * start / max(1, wall_ns), 4),
                width=round(100 * (stop - start) / max(1, wall_ns), 4),
                layers=(Layer(paint=paint, top=0, height=100),),
                title=f"{task.task}, try {one.number}: {name} {figures.duration(stop - start)}, {one.state}",
                label="",
            )
