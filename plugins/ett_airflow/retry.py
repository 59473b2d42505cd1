"""How each task is retried: its own number of tries, pace and policy, from the spec's `retries` section."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from trainer.spec import Retries

MAX_DELAY = timedelta(minutes=15)

# Trying again cannot help: what is wrong stands in a file or in the deployment.
_HOPELESS = RetryRule(
    exception=[
        "trainer.spec.SpecError",
        "trainer.launch.InvalidRequestError",
        "trainer.launch.UnknownSchedulerError",
        "trainer.launch.CapacityError",
        "trainer.launch.ForeignHostError",
    ],
    action=RetryAction.FAIL,
    reason="the same call would be refused again; see the message",
)


@dataclass(frozen=True)
class Pace:
    """The first retry waits `spec.retries.delay_s * first`; each later one `growth` times as long."""

    first: float
    growth: float


_PACES = {
    "check_schema": Pace(1, 2),  # late or half-copied data needs time
    "launch": Pace(1, 2),  # capacity and quota come back slowly
    "train": Pace(1, 2),  # a first failure is mostly a lost machine, a second one seldom is
    "publish": Pace(1, 3),  # registry and storage outages
    "ett": Pace(0.5, 1.5),  # a cold or restarting API server
    "report": Pace(0.5, 1.5),
}


def retry_arguments(task: str, retries: Retries) -> dict[str, Any]:
    """The operator arguments of `task`'s retries."""
    pace = _PACES[task]
    return {
        "retries": getattr(retries, task),
        "retry_delay": timedelta(seconds=retries.delay_s * pace.first),
        "retry_exponential_backoff": pace.growth,
        "max_retry_delay": MAX_DELAY,
        "retry_policy": ExceptionRetryPolicy(rules=[_HOPELESS]),
    }
