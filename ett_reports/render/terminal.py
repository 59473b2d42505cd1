"""The report in a terminal, for 80 columns and more. Needs `rich`."""

from __future__ import annotations

import io

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ett_reports.advice import answer
from ett_reports.events import L1, Component
from ett_reports.render import figures
from ett_reports.render.untrusted import printable_tree
from ett_reports.render.words import COMPONENT, HEALTH, LEVEL_1, PHASE
from ett_reports.report import JobReport, JobState, RefreshReport, TrainingMetrics
from ett_reports.slo import TASK_OF, Health, Judgement, Owned, Severity, Verdict

PAINT: dict[Component, str] = {
    Component.SCHEDULING: "#56b4e9",
    Component.TRAINER_INIT: "#e69f00",
    Component.PT2_COMPILE: "#3d8fd1",
    Component.EFFECTIVE_TRAINING: "#009e73",
    Component.WASTED_TRAINING: "#d55e00",
    Component.SHUTDOWN: "#cc79a7",
    Component.UNATTRIBUTED: "#8a8a8a",
}
"""Okabe and Ito's palette, which stays apart under every kind of colour blindness."""

_RULED = box.Box("    \n    \n ── \n    \n    \n ── \n    \n    \n")

_HEALTH_STYLE = {
    Health.HEALTHY: "green",
    Health.BREACHED: "bold red",
    Health.DEGRADED: "yellow",
    Health.PENDING: "yellow",
    Health.UNSET: "dim",
}


def render_terminal(job: JobReport, refresh: RefreshReport | None, judgement: Judgement) -> RenderableType:
    """Everything a person needs to know of one run, most important first."""
    job, refresh, judgement = printable_tree(job), printable_tree(refresh), printable_tree(judgement)
    parts: list[RenderableType] = [_headline(job, judgement), _components(job, judgement), _levels(job)]
    if refresh is not None:
        parts.append(_tasks(refresh, judgement))
    if job.metrics:
        parts.append(_metrics(job))
    if job.failures:
        parts.append(_failures(job))
    parts.append(_findings(job, refresh, judgement))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def to_text(renderable: RenderableType, width: int = 100) -> str:
    """The same as plain text, for a log or a file."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _headline(job: JobReport, judgement: Judgement) -> RenderableType:
    found = answer(job, judgement)
    state = {JobState.LIVE: "live", JobState.COMPLETED: "completed", JobState.FAILED: "failed"}[job.state]
    first = Text.assemble(
        ("ETT ", "bold"),
        (figures.percent(job.ett), "bold green"),
        f"  {figures.duration(job.productive_ns)} of {figures.duration(job.wall_ns)} trained on new data  ",
        (f"[{state}]", "bold red" if job.state is JobState.FAILED else "bold"),
    )
    lines = [Text(job.job, style="dim"), first]
    if found.component is None:
        lines.append(Text(found.action))
        return Group(*lines)
    share = figures.share(found.cost_ns, job.wall_ns)
    cost = f"{figures.duration(found.cost_ns)} ({share})"
    leaf = "" if found.leaf is None else f", most of it {PHASE[found.leaf].lower()}"
    if found.leaf is not None and COMPONENT[found.component] == PHASE[found.leaf]:
        leaf = ""
    lines.append(Text.assemble("Cost the most: ", (COMPONENT[found.component], "bold"), f" {cost}{leaf}"))
    owner = "nobody yet: name an owner in the refresh spec" if found.owner is None else found.owner.label
    lines.append(Text.assemble("Whose it is:   ", (owner, "bold")))
    lines.append(Text.assemble("What to do:    ", found.action))
    return Group(*lines)


def _table(title: str, **columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=_RULED,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify=justify, overflow="fold")  # type: ignore[arg-type]
    return table


def _components(job: JobReport, judgement: Judgement) -> Table:
    table = _table("Where the time went")
    verdicts = {component: judgement.verdict(component) for component in Component}
    table.add_column("component", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", min_width=3, max_width=24)
    table.add_column("owner", overflow="ellipsis", no_wrap=True, max_width=18)
    # On a narrow terminal the bar shrinks first; a limit is never cut, since half of one reads as another.
    table.add_column("service level", no_wrap=True, min_width=max(_state(each).cell_len for each in verdicts.values()))
    for component, verdict in verdicts.items():
        spent = job.l2.get(component, 0)
        table.add_row(
            Text(COMPONENT[component], style="bold" if component is Component.EFFECTIVE_TRAINING else ""),
            figures.seconds(spent),
            figures.share(spent, job.wall_ns),
            Bar(max(1, job.wall_ns), 0, spent, color=PAINT[component]),
            "-" if verdict.owner is None else verdict.owner.team,
            _state(verdict),
        )
    table.add_section()
    total = sum(job.l2.values())
    table.add_row(
        Text("= wall time", style="bold"), figures.seconds(total), figures.share(total, job.wall_ns), "", "", ""
    )
    return table


def _state(verdict: Verdict) -> Text:
    word = Text(HEALTH[verdict.health], style=_HEALTH_STYLE[verdict.health])
    if verdict.level is None:
        return Text("-", style="dim")
    asked = "≥" if verdict.subject is Owned.EFFECTIVE_TRAINING and verdict.level.share is not None else "≤"
    limit = f"{100 * verdict.level.share:g}%" if verdict.level.share is not None else f"{verdict.level.seconds:g} s"
    return Text.assemble(word, (f" {asked} {limit}", "dim"))


def _levels(job: JobReport) -> Table:
    table = _table("Level 1", **{"class": "left"}, seconds="right", share="right", what="left")
    recovery = "no failure"
    if job.nof:
        recovery = f"{job.nof} failure{'s' if job.nof > 1 else ''}, mean TTR {figures.duration(job.mean_ttr_ns)}"
    notes = {L1.TTS: "submission to the first productive instant", L1.RECOVERY: recovery}
    for level in L1:
        spent = job.l1.get(level, 0)
        table.add_row(
            LEVEL_1[level], figures.seconds(spent), figures.share(spent, job.wall_ns), Text(notes.get(level, ""), "dim")
        )
    table.add_section()
    total = sum(job.l1.values())
    held = f"ETT of held time {figures.percent(job.held_ett)}"
    lost = job.gpu_hours_lost
    if lost is not None:
        held += f", {lost:,.2f} device-hours lost"
    table.add_row(
        Text("= wall time", style="bold"), figures.seconds(total), figures.share(total, job.wall_ns), Text(held, "dim")
    )
    return table


def _tasks(refresh: RefreshReport, judgement: Judgement) -> Table:
    title = f"Tasks of the refresh: {figures.duration(refresh.wall_ns)}"
    if refresh.freshness_ns is not None:
        title += f", data live {figures.duration(refresh.freshness_ns)} after its window"
    table = _table(title, task="left", ETT="right", share="right", queue="right", run="right", deferred="right")
    table.add_column("wasted", justify="right")
    table.add_column("tries", justify="right")
    for task in refresh.tasks:
        tries = task.tries
        table.add_row(
            Text(task.task),
            figures.percent(task.ett),
            figures.percent(task.share if task.share is not None else task.interval_ns / max(1, refresh.wall_ns)),
            figures.seconds(sum(one.queue_ns for one in tries)),
            figures.seconds(sum(one.run_ns for one in tries)),
            figures.seconds(sum(one.deferred_ns for one in tries)),
            figures.seconds(sum(one.wasted_ns for one in tries)),
            str(len(tries)),
        )
    levels = [judgement.verdict(subject) for subject in TASK_OF]
    said = [f"{verdict.subject.value} {HEALTH[verdict.health]}" for verdict in levels if verdict.level is not None]
    table.caption = f"service levels: {', '.join(said)}" if said else None
    return table


def last_metrics(metrics: tuple[TrainingMetrics, ...]) -> tuple[TrainingMetrics, ...]:
    """The last figures of every scope, in the order in which the scopes first came."""
    last: dict[str, TrainingMetrics] = {}
    for one in metrics:
        last[one.scope] = one
    return tuple(last.values())


def _metrics(job: JobReport) -> Table:
    last = last_metrics(job.metrics)
    names = list(dict.fromkeys(name for one in last for name in one.values))
    table = _table("Training metrics", scope="left")
    for name in names:
        table.add_column(Text(name.upper() if name in ("ne", "auc") else name), justify="right")
    for one in last:
        table.add_row(Text(one.scope), *(figures.number(one.values.get(name)) for name in names))
    return table


def _failures(job: JobReport) -> Table:
    table = _table("Failures", attempt="right", cause="left", lost="right", detect="right", TTR="right")
    table.add_column("replayed", justify="right")
    table.add_column("message", overflow="fold", ratio=1)
    for failure in job.failures:
        table.add_row(
            str(failure.attempt),
            failure.cause.value + ("" if failure.recovered else ", not recovered"),
            figures.seconds(failure.lost_ns),
            figures.seconds(failure.detect_ns),
            figures.seconds(failure.ttr_ns),
            figures.count(failure.replayed_samples),
            Text(failure.message),
        )
    return table


def _findings(job: JobReport, refresh: RefreshReport | None, judgement: Judgement) -> RenderableType:
    styles = {Severity.ALERT: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
    lines = []
    for finding in judgement.findings:
        owner = "" if finding.owner is None else f" [{finding.owner.label}]"
        lines.append(Text.assemble((f"{finding.severity.value:<8}", styles[finding.severity]), finding.message, owner))
    degraded = bool(job.degraded) or (refresh is not None and bool(refresh.degraded))
    if degraded:
        lines.append(Text("This report is degraded: what is missing is not healthy, it is unknown.", style="yellow"))
    if not lines:
        lines.append(
            Text("No finding: every source is there and every service level that is set is kept.", style="dim")
        )
    return Group(*lines)
