"""Why a job ended, as a table."""

from __future__ import annotations

import pytest

from ett_reports.events import Cause
from trainer.launch import JobState, RankStatus
from trainer.launch.outcome import Ending, outcome


def ranks(*codes: int) -> list[RankStatus]:
    return [RankStatus(rank=rank, pid=1, pid_started=0.0, exit_code=code) for rank, code in enumerate(codes)]


CASES = [
    # ending, failures that count, state, cause, deciding rank
    (Ending.NONE, (), JobState.SUCCEEDED, None, 0),
    (Ending.RANK_FAILED, (1,), JobState.FAILED, Cause.APPLICATION, 0),
    (Ending.RANK_FAILED, (-9,), JobState.FAILED, Cause.INFRASTRUCTURE, 0),
    (Ending.RANK_FAILED, (65,), JobState.FAILED, Cause.DATA, 0),
    (Ending.RANK_FAILED, (70,), JobState.FAILED, Cause.HANG, 0),
    (Ending.RANK_FAILED, (1, 70), JobState.FAILED, Cause.HANG, 1),
    # A peer that lost its connection in the same instant is not the reason.
    (Ending.RANK_FAILED, (1, -9), JobState.FAILED, Cause.INFRASTRUCTURE, 1),
    (Ending.RANK_FAILED, (1, 65), JobState.FAILED, Cause.DATA, 1),
    (Ending.RANK_PREEMPTED, (75,), JobState.PREEMPTED, Cause.PREEMPTION, 0),
    (Ending.RANK_PREEMPTED, (1, 75), JobState.PREEMPTED, Cause.PREEMPTION, 1),
    # SIGTERM before the rank could have a handler.
    (Ending.RANK_PREEMPTED, (-15,), JobState.PREEMPTED, Cause.PREEMPTION, 0),
    (Ending.PREEMPTED, (75, 75), JobState.PREEMPTED, Cause.PREEMPTION, 0),
    (Ending.PREEMPTED, (-15,), JobState.PREEMPTED, Cause.PREEMPTION, 0),
    (Ending.PREEMPTED, (1,), JobState.FAILED, Cause.APPLICATION, 0),
    (Ending.PREEMPTED, (), JobState.SUCCEEDED, None, 0),
    (Ending.CANCELLED, (), JobState.CANCELLED, Cause.CANCELLED, None),
    (Ending.HUNG, (), JobState.FAILED, Cause.HANG, None),
]


@pytest.mark.parametrize(("ending", "codes", "state", "cause", "deciding"), CASES)
def test_outcome(
    ending: Ending, codes: tuple[int, ...], state: JobState, cause: Cause | None, deciding: int | None
) -> None:
    found = outcome(ending, ranks(*codes), ranks(*(codes or (0, 0))))
    assert (found.state, found.cause) == (state, cause)
    assert (found.deciding.rank if found.deciding else None) == deciding
