"""`run`: one job's report from its event log."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ett_reports.commands import CommandError
from ett_reports.commands.inputs import policy_at
from ett_reports.document import ReportDocument
from ett_reports.levels import reduce
from ett_reports.log import EventLog
from ett_reports.plain_text import render
from ett_reports.reader import read_log
from ett_reports.report import to_json
from ett_reports.slo import Snapshot, judge
from ett_reports.tasks import reduce_refresh

HELP = "ETT% of one run, from its event log"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("events", help="a run folder, its events folder, or one event file")
    parser.add_argument("--json", action="store_true", help="print the versioned report document")
    parser.add_argument(
        "--out", metavar="FOLDER", help="write ett.json, ett.html, ett.txt, trace.json and metrics.prom there"
    )
    parser.add_argument("--policy", metavar="FILE.json", help="owners and service levels")
    parser.add_argument("--title", help="the title of the HTML report (default: the job's name)")
    parser.add_argument("--now", metavar="UNIX_SECONDS", help="the instant of the report of a live run (default: now)")


def execute(arguments: Namespace) -> int:
    policy = policy_at(arguments.policy)
    now = _now(arguments.now)
    log = read_log(arguments.events)
    job = reduce(log, now)
    refresh = reduce_refresh(log, job, now)
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=policy))
    document = ReportDocument(title=arguments.title or job.job, job=job, refresh=refresh, judgement=judgement)
    if arguments.json:
        print(json.dumps(to_json(job) | {"refresh": to_json(refresh) if refresh is not None else None}, indent=1))
    else:
        _print(document)
    if arguments.out:
        for path in _write(document, Path(arguments.out), log).values():
            print(path, file=sys.stderr)
    return 0


def _print(document: ReportDocument) -> None:
    """With `rich` tables and colour; without it plain text, so that the metric needs the standard library only."""
    try:
        from rich.console import Console

        from ett_reports.render.terminal import render_terminal
    except ModuleNotFoundError:
        print(render(document.job, document.refresh))
        return
    Console().print(render_terminal(document.job, document.refresh, document.judgement))


def _write(document: ReportDocument, out: Path, log: EventLog) -> dict[Any, Path]:
    try:
        from ett_reports.render.files import write_document
    except ModuleNotFoundError as error:
        raise CommandError(f"--out needs {error.name}: pip install 'effective-training-time[reports]'") from None
    try:
        return write_document(document, out, log=log)
    except OSError as error:
        raise CommandError(f"{out}: {error.strerror}") from None


def _now(given: str | None) -> int:
    if given is None:
        return time.time_ns()
    try:
        return int(float(given) * 1e9)
    except (ValueError, OverflowError):
        raise CommandError(f"--now {given}: expected seconds since 1970, for example {int(time.time())}") from None
