"""How far the training job's attempts came, read from the run's event log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ett_reports.events import Cause
from trainer.run_folder import RunFolder

if TYPE_CHECKING:
    from ett_reports.report import JobReport

_NOT_CRASHES = frozenset({Cause.PREEMPTION, Cause.CANCELLED, Cause.PLANNED})


def stuck_attempts(folder: RunFolder) -> int:
    """How many attempts in a row, counted from the newest, ended without moving the high-water mark.

    Attempts that were preempted or that a person stopped are no crashes, but what they have trained is progress.
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
        reached = attempt.end_cursor or 0
        if reached > highest:
            highest, stuck = reached, 0
        elif attempt.cause not in _NOT_CRASHES:
            stuck += 1
    return stuck
