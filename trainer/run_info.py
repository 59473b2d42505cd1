"""What is decided once per run: its days, what it starts from, and what it is for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import model_validator

from trainer.section import Day, Section, enum_of


class Window(Section):
    """Days of the feature log, `start` included, `end` not."""

    start: Day
    end: Day

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"window end {self.end} must be after its start {self.start} (the end is exclusive)")
        return self

    @property
    def days(self) -> int:
        return (self.end - self.start).days


class WarmStart(Section):
    """The anchor checkpoint that a run starts from, and the run that wrote it."""

    run: str
    anchor: str


class RunType(StrEnum):
    SCHEDULED = "scheduled"
    MANUAL = "manual"
    BACKFILL = "backfill"
    ASSET = "asset_triggered"


class Purpose(StrEnum):
    """What a run is for: the next link of the daily warm-start chain, or a trial that leaves no trace in it."""

    DAILY = "daily"
    TUNING = "tuning"


class RunInfo(Section):
    """What is decided once per run, before its first task starts work.

    `publish_live`: whether its snapshot may become the live one.
    """

    run: str
    window: Window
    run_type: Annotated[RunType, enum_of(RunType)] = RunType.MANUAL
    purpose: Annotated[Purpose, enum_of(Purpose)] = Purpose.DAILY
    publish_live: bool = True
    warm_start: WarmStart | None = None
    params: dict[str, Any] = {}
    newest_day: Day | None = None
