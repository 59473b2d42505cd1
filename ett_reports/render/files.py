"""One call from an event log to all files of a run's report."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ett_reports.document import ReportDocument, plain
from ett_reports.levels import reduce
from ett_reports.log import EventLog
from ett_reports.reader import read_log
from ett_reports.render.html import render_html
from ett_reports.render.openmetrics import render_openmetrics
from ett_reports.render.perfetto import render_trace
from ett_reports.render.terminal import render_terminal, to_text
from ett_reports.report import JobReport, RefreshReport
from ett_reports.slo import Judgement, Snapshot, Verdict, judge, policy_from
from ett_reports.tasks import reduce_refresh


class Output(StrEnum):
    """The files of a report, by what they are for."""

    JSON = "json"
    HTML = "html"
    TRACE = "trace"
    TEXT = "text"
    METRICS = "metrics"


FILE_NAMES: dict[Output, str] = {
    Output.JSON: "ett.json",
    Output.HTML: "ett.html",
    Output.TRACE: "trace.json",
    Output.TEXT: "ett.txt",
    Output.METRICS: "metrics.prom",
}


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where the files are, and what they say."""

    paths: dict[Output, Path]
    job: JobReport
    refresh: RefreshReport | None
    judgement: Judgement

    @property
    def breaches(self) -> tuple[Verdict, ...]:
        return self.judgement.breaches


def write_reports(
    run_folder_or_events: Path,
    out: Path,
    *,
    owners: Mapping[str, Any] | None = None,
    service_levels: Mapping[str, Any] | None = None,
    title: str | None = None,
    spec_summary: Mapping[str, Any] | None = None,
    now_ns: int | None = None,
) -> Written:
    """Read and reduce a log, judge it, and write every output into `out`, each file whole or not at all.

    owners, service_levels: component -> {team, contact} and {share} or {seconds}, or objects with these attributes.
    now_ns: unix ns, for a live job.

    Raises:
        LogError, TimelineError: nothing to reduce there.
        PolicyError: an owner or a service level that cannot be used.
    """
    policy = policy_from(owners, service_levels)
    log = read_log(run_folder_or_events)
    job = reduce(log, now_ns)
    refresh = reduce_refresh(log, job, now_ns)
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=policy))
    document = ReportDocument(
        title=title or job.job, job=job, refresh=refresh, judgement=judgement, spec=plain(spec_summary or {})
    )
    paths = write_document(document, out, log=log)
    return Written(paths=paths, job=job, refresh=refresh, judgement=judgement)


def write_document(document: ReportDocument, out: Path, *, log: EventLog | None = None) -> dict[Output, Path]:
    """Write all outputs of results that are already at hand. The log, if given, adds ranks to the trace."""
    job, refresh, judgement = document.job, document.refresh, document.judgement
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        Output.TRACE: json.dumps(render_trace(job, refresh, log), separators=(",", ":"), allow_nan=False),
        Output.TEXT: to_text(render_terminal(job, refresh, judgement)),
        Output.METRICS: render_openmetrics(job, refresh, judgement),
        Output.HTML: render_html(job, refresh, judgement, title=document.title, spec_summary=document.spec),
        Output.JSON: document.dumps(),
    }
    paths = {output: out / FILE_NAMES[output] for output in texts}
    for output, text in texts.items():
        _replace(paths[output], text)
    return paths


def _replace(path: Path, text: str) -> None:
    """Write aside, then rename: a reader never meets half a file."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
