"""What several commands take: a run, given as its folder, its event log, or its ett.json."""

from __future__ import annotations

import time
from pathlib import Path

from ett_reports.commands import CommandError
from ett_reports.document import ReportDocument, read_document
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.slo import Policy, PolicyError, Snapshot, judge, load_policy
from ett_reports.tasks import reduce_refresh


def report_at(given: str | Path) -> ReportDocument:
    """A run's results: read from ett.json where there is one, else reduced from the event log.

    Raises LogError, TimelineError or ReportError, one line each.
    """
    path = Path(given)
    if path.suffix == ".json" or (path / "ett.json").is_file() or (path / "report" / "ett.json").is_file():
        return read_document(path)
    return reduced(path)


def reduced(path: Path, *, now_ns: int | None = None, policy: Policy | None = None, title: str = "") -> ReportDocument:
    """A run's results from its event log alone."""
    now = time.time_ns() if now_ns is None else now_ns
    log = read_log(path)
    job = reduce(log, now)
    refresh = reduce_refresh(log, job, now)
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=policy or Policy()))
    return ReportDocument(title=title or job.job, job=job, refresh=refresh, judgement=judgement)


def policy_at(given: str | None) -> Policy:
    """Owners and service levels from a JSON file; none without one. Raises CommandError."""
    try:
        return Policy() if given is None else load_policy(Path(given))
    except PolicyError as error:
        raise CommandError(str(error)) from None
