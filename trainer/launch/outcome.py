"""Why a job ended, from its ranks' exits. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ett_reports.events import Cause
from trainer.launch.jobs import EXIT_BAD_DATA, EXIT_HUNG, EXIT_PREEMPTED, JobState, RankStatus


class Ending(StrEnum):
    """Why the ranks are being ended, if they are; the earliest reason stands."""

    NONE = "none"
    """They run, or end by themselves."""
    RANK_FAILED = "rank_failed"
    """A rank failed: its peers cannot go on."""
    RANK_PREEMPTED = "rank_preempted"
    """A rank left for a preemption: its peers are leaving too."""
    PREEMPTED = "preempted"
    """We passed on a preemption."""
    CANCELLED = "cancelled"
    HUNG = "hung"


@dataclass(frozen=True)
class Outcome:
    """A job's end.

    Attributes:
        deciding: the rank whose exit decided, if one did.
    """

    state: JobState
    cause: Cause | None
    deciding: RankStatus | None

    @property
    def exit_code(self) -> int | None:
        return None if self.deciding is None else self.deciding.exit_code


def cause_of(exit_code: int) -> Cause:
    """The failure taxonomy, by exit code (negative: killed by that signal).

    SIGTERM kills only a rank that is too young to have a handler: it was asked to leave, like one that could answer.
    """
    if exit_code in (EXIT_PREEMPTED, -signal.SIGTERM):
        return Cause.PREEMPTION
    if exit_code == EXIT_BAD_DATA:
        return Cause.DATA
    if exit_code == EXIT_HUNG:
        return Cause.HANG
    return Cause.INFRASTRUCTURE if exit_code < 0 else Cause.APPLICATION


_TELLING = (Cause.PREEMPTION, Cause.DATA, Cause.HANG, Cause.INFRASTRUCTURE, Cause.APPLICATION)


def first_cause(failures: Sequence[RankStatus]) -> RankStatus:
    """Of ranks that failed in the same instant the most telling one: a peer's death makes others exit with an error."""

    def precedence(failure: RankStatus) -> tuple[int, int]:
        return _TELLING.index(cause_of(failure.exit_code or 0)), failure.rank

    return min(failures, key=precedence)


def outcome(ending: Ending, failures: Sequence[RankStatus], ranks: Sequence[RankStatus]) -> Outcome:
    """The end of a job whose ranks are all gone.

    Args:
        failures: ranks that failed before we began to end any, or, if we passed on a preemption, after it.
        ranks: all of them.
    """
    if ending is Ending.CANCELLED:
        return Outcome(JobState.CANCELLED, Cause.CANCELLED, first_cause(failures) if failures else None)
    if ending is Ending.HUNG:
        return Outcome(JobState.FAILED, Cause.HANG, None)
    if not failures:
        return Outcome(JobState.SUCCEEDED, None, min(ranks, key=lambda rank: rank.rank, default=None))
    deciding = first_cause(failures)
    cause = cause_of(deciding.exit_code or 0)
    if ending is Ending.PREEMPTED and cause is Cause.INFRASTRUCTURE:
        cause = Cause.PREEMPTION  # killed by the signal that we passed on, or at the end of its grace time
    state = JobState.PREEMPTED if cause is Cause.PREEMPTION else JobState.FAILED
    return Outcome(state, cause, deciding)


def ended_how(exit_code: int) -> str:
    """For people.

    >>> ended_how(-9), ended_how(1)
    ('was killed by SIGKILL', 'exited with 1')
    """
    if exit_code >= 0:
        return f"exited with {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
