"""`watch`: the report of a run while it goes on, until it ends."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ett_reports.commands import CommandError
from ett_reports.commands.inputs import policy_at, reduced
from ett_reports.document import ReportDocument
from ett_reports.reader import LogError
from ett_reports.report import JobState
from ett_reports.slo import Policy
from ett_reports.timeline import TimelineError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HELP = "follow a live run: its ETT% now, until it ends"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("events", help="a run folder or its events folder; it may not exist yet with --wait")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait so long for the first event")
    parser.add_argument("--policy", metavar="FILE.json", help="owners and service levels")


def execute(arguments: Namespace) -> int:
    """Returns 0 when the job completed, 1 when it failed."""
    from rich.console import Console
    from rich.live import Live

    if arguments.every <= 0:
        raise CommandError(f"--every {arguments.every}: expected seconds above 0")
    policy = policy_at(arguments.policy)
    path = Path(arguments.events)
    console = Console()
    document = _first(path, policy, arguments.wait)
    if console.is_terminal:
        with Live(_view(document), console=console, refresh_per_second=4, vertical_overflow="crop") as live:
            while document.job.state is JobState.LIVE:
                time.sleep(arguments.every)
                document = reduced(path, policy=policy)
                live.update(_view(document))
    else:
        document = _follow_by_lines(path, policy, document, console, arguments.every)
    return 0 if document.job.state is JobState.COMPLETED else 1


def _follow_by_lines(
    path: Path, policy: Policy, document: ReportDocument, console: Console, every: float
) -> ReportDocument:
    """Without a terminal: one line per look, then the report."""
    from ett_reports.render.figures import duration, percent

    while document.job.state is JobState.LIVE:
        job = document.job
        mark, planned = job.high_water_mark or 0, job.planned_samples
        of = "" if not planned else f" of {planned:,} ({100 * mark / planned:.0f}%)"
        print(f"{duration(job.wall_ns)}  ETT {percent(job.ett)}  {mark:,}{of} samples, {job.nof} failures", flush=True)
        time.sleep(every)
        document = reduced(path, policy=policy)
    console.print(_view(document))
    return document


def _first(path: Path, policy: Policy, patience: float) -> ReportDocument:
    deadline = time.monotonic() + patience
    while True:
        try:
            return reduced(path, policy=policy)
        except (LogError, TimelineError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _view(document: ReportDocument) -> RenderableType:
    from ett_reports.render.terminal import render_terminal

    return render_terminal(document.job, document.refresh, document.judgement)
