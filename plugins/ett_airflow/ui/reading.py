"""What a run folder says now: its written report where that still stands, else the event log reduced anew."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett_airflow.outcome import last_messages
from ett_airflow.run_summary import run_summary, run_title
from ett_reports.document import ReportDocument, plain, read_document
from ett_reports.levels import reduce
from ett_reports.log import EventLog
from ett_reports.reader import LogError, read_log
from ett_reports.report import JobReport, JobState, RefreshReport, ReportError
from ett_reports.slo import Policy, Snapshot, judge, policy_from
from ett_reports.tasks import reduce_refresh
from ett_reports.timeline import TimelineError
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec, SpecError, load_run_spec

_AIRFLOWS = "airflow-"
"""Event folders of Airflow's side: their stamps after the report do not change what the job did."""


@dataclass(frozen=True, kw_only=True)
class SchemaCheck:
    """What schema_report.json says of a check that did not pass."""

    message: str
    findings: tuple[dict[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One run as its folder shows it.

    Attributes:
        document: the job's results; None before a training job was submitted.
        refresh: the tasks; None before any of them has left a stamp.
        policy: owners and service levels of the run's spec; empty if the spec cannot be read.
        messages: the last failed end of each task, only where there is no document.
        unreadable: why the log cannot be read; empty if it can.
    """

    document: ReportDocument | None = None
    refresh: RefreshReport | None = None
    policy: Policy = field(default_factory=Policy)
    check: SchemaCheck | None = None
    messages: dict[str, str] = field(default_factory=dict)
    unreadable: str = ""

    @property
    def live(self) -> bool:
        """Whether the figures go on with the time."""
        if self.document is not None:
            return self.document.job.state is JobState.LIVE or (self.refresh is not None and _open(self.refresh))
        return self.refresh is None or _open(self.refresh)


def read_run(folder: RunFolder, now_ns: int) -> Reading:
    """Read a run folder; whatever is missing or damaged in it is left out or said, never raised."""
    spec = _spec(folder)
    policy = (
        Policy() if spec is None else policy_from(_by_name(spec.refresh.owners), _by_name(spec.refresh.service_levels))
    )
    written = _standing_report(folder)
    if written is not None:
        return Reading(document=written, refresh=written.refresh, policy=policy)
    try:
        log = read_log(folder.events_dir)
    except LogError as error:
        return Reading(policy=policy, check=_failed_check(folder), unreadable=str(error) if _has_events(folder) else "")
    return _reduced(folder, log, spec, policy, now_ns)


def _reduced(folder: RunFolder, log: EventLog, spec: RunSpec | None, policy: Policy, now_ns: int) -> Reading:
    job: JobReport | None
    try:
        job = reduce(log, now_ns)
    except TimelineError:
        job = None
    refresh = reduce_refresh(log, job, now_ns)
    if job is None:
        return Reading(refresh=refresh, policy=policy, check=_failed_check(folder), messages=last_messages(log))
    document = ReportDocument(
        title=run_title(spec) if spec else folder.job,
        job=job,
        refresh=refresh,
        judgement=judge(Snapshot(job=job, refresh=refresh, policy=policy)),
        spec=plain(run_summary(spec)) if spec else {},
    )
    return Reading(document=document, refresh=refresh, policy=policy)


def _standing_report(folder: RunFolder) -> ReportDocument | None:
    """The report that the run wrote, unless its job went on since."""
    try:
        written = (folder.report_dir / "ett.json").stat().st_mtime_ns
    except OSError:
        return None
    if _newest_job_event(folder) > written:
        return None
    try:
        document = read_document(folder.report_dir)
    except ReportError:
        return None  # of another version, or damaged: the log is the truth
    return None if document.job.state is JobState.LIVE else document


def _newest_job_event(folder: RunFolder) -> int:
    newest = 0
    for process in _processes(folder):
        if process.name.startswith(_AIRFLOWS):
            continue
        newest = max([newest, *(path.stat().st_mtime_ns for path in process.iterdir())])
    return newest


def _processes(folder: RunFolder) -> list[Path]:
    try:
        return [path for path in folder.events_dir.iterdir() if path.is_dir()]
    except OSError:
        return []


def _has_events(folder: RunFolder) -> bool:
    return any(any(process.iterdir()) for process in _processes(folder))


def _spec(folder: RunFolder) -> RunSpec | None:
    try:
        return load_run_spec(folder.spec_path)
    except SpecError:
        return None


def _failed_check(folder: RunFolder) -> SchemaCheck | None:
    try:
        told = json.loads(folder.schema_report_path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(told, dict) or told.get("passed") is not False:
        return None
    findings = [one for one in told.get("findings") or [] if isinstance(one, dict)]
    shown = ("file", "column", "rule", "expected", "observed", "action")
    message = str(told.get("message") or "").partition("\n")[0]
    return SchemaCheck(
        message=message, findings=tuple({name: str(one.get(name) or "") for name in shown} for one in findings)
    )


def _open(refresh: RefreshReport) -> bool:
    return refresh.state in ("running", "queued")


def _by_name(entries: Any) -> dict[str, Any]:
    return {str(name): value for name, value in entries.items()}
