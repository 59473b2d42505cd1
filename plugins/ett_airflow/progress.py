"""How far the training job's attempts came, read from the run's event log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ett_reports.events import Cause
from trainer.run_folder import RunFolder

if TYPE_CHECKING:
    from ett_reports.report import JobReport

_NOT_CRASHES = frozenset({Cause.CANCELLED, Cause.PLANNED})


def stuck_attempts(folder: RunFolder) -> int:
    """How many attempts in a row, counted from the newest, ended without moving the high-water mark.

    Attempts that a person stopped are passed over: they say nothing about the job.
    """
    from ett_reports.levels import reduce  # only a failed try needs it: DAG files import this module at every parse
    from ett_reports.reader import LogError, read_log
    from ett_reports.timeline import TimelineError

    try:
        return _stuck(reduce(read_log(folder.events_dir)))
    except (LogError, TimelineError):
        return 0  # without a log nothing is known; the task's retries bound the attempts all the same


def _stuck(report: JobReport) -> int:
    highest, stuck = 0, 0
    for attempt in sorted(report.attempts, key=lambda attempt: attempt.number):
        if attempt.cause in _NOT_CRASHES:
            continue
        reached = attempt.end_cursor or 0
        stuck = 0 if reached > highest else stuck + 1
        highest = max(highest, reached)
    return stuck
