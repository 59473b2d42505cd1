"""One run: its whole report, and the few figures that move while it runs."""

from __future__ import annotations

from ett_airflow.ui.question import Answer, Question
from ett_airflow.ui.reading import Reading, read_run
from ett_airflow.ui.templating import rendered
from ett_reports.events import Component
from ett_reports.render.html import render_body, whole_bar
from ett_reports.render.untrusted import printable_tree
from ett_reports.report import JobState
from trainer.run_folder import RunFolder

MOST_FINDINGS = 100


def report(question: Question, now_ns: int) -> Answer:
    """The report, or, for a run without a training job, what is known of it and what to do."""
    reading = read_run(RunFolder.open(question.folders[0]), now_ns)
    document = reading.document
    if document is None:
        return Answer(html=_without_job(reading, now_ns), facts={"job": False}, live=reading.live)
    html = render_body(
        document.job, document.refresh, document.judgement, title=document.title, spec_summary=document.spec
    )
    return Answer(html=html, facts={"job": True, "as_of_ns": now_ns}, live=reading.live)


def figures(question: Question, now_ns: int) -> Answer:
    """The figures of this moment: ETT%, samples, where the time went so far, what is broken already."""
    reading = read_run(RunFolder.open(question.folders[0]), now_ns)
    if reading.document is None:
        html = rendered("waiting.html.j2", refresh=reading.refresh, now_ns=now_ns)
        return Answer(html=html, facts={"job": False}, live=reading.live)
    job = printable_tree(reading.document.job)
    parts = sorted(((part, spent) for part, spent in job.l2.items() if spent), key=_place)
    html = rendered(
        "figures.html.j2",
        job=job,
        judgement=printable_tree(reading.document.judgement),
        whole=whole_bar(job),
        parts_so_far=parts,
        training=job.state is JobState.LIVE,
        now_ns=now_ns,
    )
    return Answer(html=html, facts={"job": True}, live=reading.live)


def _place(part: tuple[Component, int]) -> bool:
    """As in the bar: the effective part first, then the others in their order."""
    return part[0] is not Component.EFFECTIVE_TRAINING


def _without_job(reading: Reading, now_ns: int) -> str:
    check = printable_tree(reading.check)
    return rendered(
        "without_job.html.j2",
        refresh=printable_tree(reading.refresh),
        check=check,
        findings=check.findings[:MOST_FINDINGS] if check else (),
        messages=printable_tree(reading.messages),
        unreadable=printable_tree(reading.unreadable),
        now_ns=now_ns,
    )
