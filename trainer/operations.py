"""Spec sections about running a refresh day after day: who answers for what, who is told, and what is kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from trainer.section import Count, Positive, Section, Share, enum_of


class Owner(Section):
    """The team that answers for a component."""

    team: str
    contact: str | None = None


class ServiceLevel(Section):
    """A component's budget: a share of the job's wall time, or seconds."""

    share: Share | None = None
    seconds: Positive | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.share is None) == (self.seconds is None):
            raise ValueError("give either `share` (of wall time, 0 to 1) or `seconds`")
        return self


class Owned(StrEnum):
    """What can have an owner and a service level: the six components of Table II, and the tasks around them."""

    SCHEDULING = "scheduling"
    TRAINER_INIT = "trainer_init"
    PT2_COMPILE = "pt2_compile"
    EFFECTIVE_TRAINING = "effective_training"
    WASTED_TRAINING = "wasted_training"
    SHUTDOWN = "shutdown"
    DATA = "data"
    PUBLISHING = "publishing"


OwnedName = Annotated[Owned, enum_of(Owned)]


class Notifier(Section):
    """An Airflow notifier: its class path, the arguments that it is made with, and the teams whose alerts it sends.

    The arguments are Airflow templates with one more name, `alert`; see docs/runbook.md. No `teams` means every team.
    The class is code: it is named in the spec file only, never by a run's Param.
    """

    notifier: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
    arguments: dict[str, Any] = {}
    teams: list[str] = []


class Alerts(Section):
    """Who is told that a service level broke or mended, or that a run failed: nobody unless a notifier is named.

    `fallback` answers for what has no owner.
    """

    notifiers: list[Notifier] = []
    fallback: Owner | None = None


class Retention(Section):
    """What housekeeping keeps of a refresh; days count from when a thing was last written.

    `apply`: the daily housekeeping deletes what has expired; without it, it only lists it. `anchors` are the newest
    ones kept for warm starts, `snapshots` the versions kept that were live before the one that is.
    """

    apply: bool = False
    run_days: Positive = 90.0
    checkpoint_days: Positive = 7.0
    log_days: Positive = 30.0
    anchors: Count = 14
    snapshots: Count = 7
    snapshot_days: Positive = 30.0
    compile_cache_days: Positive = 30.0
    compile_cache_gb: Positive = 10.0
