"""The `checkpoint` section of the refresh spec: where, how often, how many, and what a save that failed means."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import field_validator

from trainer.section import Count, Positive, Section, enum_of
from trainer.storage import check_location


class OnFailure(StrEnum):
    """What training does when a save in the background failed."""

    GO_ON = "go_on"  # the next save tries again; what a failure then costs shows as recovery
    FAIL = "fail"  # all ranks stop at the next step; the job's next attempt resumes from the checkpoint before


class Checkpoint(Section):
    """Seconds between the starts of two saves, how many complete ones are kept, and where.

    `root` is a path or URL (`file://`, `s3://BUCKET/PREFIX`) below which every run has `<refresh>/<run>/`; without it
    checkpoints are in the run folder. `commit_timeout_s` is how long one save may take before it is given up.
    """

    interval_s: Positive = 600.0
    keep: Count = 2
    root: str | None = None
    on_failure: Annotated[OnFailure, enum_of(OnFailure)] = OnFailure.GO_ON
    commit_timeout_s: Positive = 600.0

    @field_validator("root")
    @classmethod
    def _somewhere(cls, value: str | None) -> str | None:
        return value if value is None else check_location(value)
