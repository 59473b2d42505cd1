"""Jobs behind one interface: submit, find, describe, cancel, logs."""

from trainer.launch.errors import (
    CapacityError,
    ForeignHostError,
    InvalidRequestError,
    JobNotFoundError,
    LaunchError,
    RecordWriteError,
    SupervisorStartError,
    UnknownSchedulerError,
)
from trainer.launch.jobs import (
    EXIT_BAD_DATA,
    EXIT_HUNG,
    EXIT_PREEMPTED,
    JobHandle,
    JobKey,
    JobRequest,
    JobState,
    JobStatus,
    RankStatus,
    Resources,
)
from trainer.launch.launcher import Launcher, launcher_for, newest_attempt

__all__ = [
    "EXIT_BAD_DATA",
    "EXIT_HUNG",
    "EXIT_PREEMPTED",
    "CapacityError",
    "ForeignHostError",
    "InvalidRequestError",
    "JobHandle",
    "JobKey",
    "JobNotFoundError",
    "JobRequest",
    "JobState",
    "JobStatus",
    "LaunchError",
    "Launcher",
    "RankStatus",
    "RecordWriteError",
    "Resources",
    "SupervisorStartError",
    "UnknownSchedulerError",
    "launcher_for",
    "newest_attempt",
]
