"""The event log's vocabulary: who writes (sources, processes), what is written (kinds), and the leaves of section 4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

SCHEMA_VERSION = 1


class Source(StrEnum):
    """Who wrote an event."""

    TRAINER = "trainer"
    LAUNCHER = "launcher"
    SCHEDULER = "scheduler"
    AIRFLOW = "airflow"


PRECEDENCE: tuple[Source, ...] = (Source.TRAINER, Source.LAUNCHER, Source.SCHEDULER, Source.AIRFLOW)
"""When two sources tell the same fact, the earlier one here is believed (section 7)."""


class Kind(StrEnum):
    """The kinds of line in a log file."""

    PROCESS = "process"  # first line of every file of a process: identity, host, a clock pair
    CLOCK = "clock"  # one (wall, monotonic) pair
    OPEN = "open"  # a span has begun
    SPAN = "span"  # a span has ended; carries all of it, so that a lost `open` costs nothing
    POINT = "point"  # a fact at an instant
    STEPS = "steps"  # a window of completed steps
    SWEEP = "sweep"  # written for a dead process: its last sign of life
    END = "end"  # the process closed its recorder


class Component(StrEnum):
    """Level 2: six components, each with an owner, and the residual."""

    SCHEDULING = "scheduling"
    TRAINER_INIT = "trainer_init"
    PT2_COMPILE = "pt2_compile"
    EFFECTIVE_TRAINING = "effective_training"
    WASTED_TRAINING = "wasted_training"
    SHUTDOWN = "shutdown"
    UNATTRIBUTED = "unattributed"


class Phase(StrEnum):
    """The leaves of level 2. Their order breaks ties on the critical path (section 5)."""

    QUEUE_WAIT = "queue_wait"
    RETRY_WAIT = "retry_wait"
    HARDWARE_SETUP = "hardware_setup"
    LAUNCHER_INIT = "launcher_init"
    DEVICE_INIT = "device_init"
    PROCESS_GROUP = "process_group"
    PREPROCESSING = "preprocessing"
    TRAIN_MODULE = "train_module"
    PLUGIN_INIT = "plugin_init"
    PRE_TRAIN_SETUP = "pre_train_setup"
    CHECKPOINT_RESTORE = "checkpoint_restore"
    FIRST_BATCH = "first_batch"
    COMPILE = "compile"
    RECOMPILE = "recompile"
    STEP = "step"
    REPLAY = "replay"
    LOST_STEP = "lost_step"
    CHECKPOINT_BLOCKING = "checkpoint_blocking"
    DATA_STALL = "data_stall"
    EVALUATION = "evaluation"
    HANG = "hang"
    FINAL_CHECKPOINT = "final_checkpoint"
    IN_TRAINER_PUBLISH = "in_trainer_publish"
    TEARDOWN = "teardown"
    UNATTRIBUTED = "unattributed"


def _component_map() -> dict[Phase, Component]:
    leaves = {
        Component.SCHEDULING: (Phase.QUEUE_WAIT, Phase.RETRY_WAIT, Phase.HARDWARE_SETUP),
        Component.TRAINER_INIT: (
            Phase.LAUNCHER_INIT,
            Phase.DEVICE_INIT,
            Phase.PROCESS_GROUP,
            Phase.PREPROCESSING,
            Phase.TRAIN_MODULE,
            Phase.PLUGIN_INIT,
            Phase.PRE_TRAIN_SETUP,
            Phase.CHECKPOINT_RESTORE,
            Phase.FIRST_BATCH,
        ),
        Component.PT2_COMPILE: (Phase.COMPILE, Phase.RECOMPILE),
        Component.EFFECTIVE_TRAINING: (Phase.STEP,),
        Component.WASTED_TRAINING: (
            Phase.REPLAY,
            Phase.LOST_STEP,
            Phase.CHECKPOINT_BLOCKING,
            Phase.DATA_STALL,
            Phase.EVALUATION,
            Phase.HANG,
        ),
        Component.SHUTDOWN: (Phase.FINAL_CHECKPOINT, Phase.IN_TRAINER_PUBLISH, Phase.TEARDOWN),
        Component.UNATTRIBUTED: (Phase.UNATTRIBUTED,),
    }
    return {phase: component for component, phases in leaves.items() for phase in phases}


COMPONENT_OF: dict[Phase, Component] = _component_map()
"""Leaf -> the level-2 component, and so the owner."""

PHASE_ORDER: dict[Phase, int] = {phase: index for index, phase in enumerate(Phase)}

DERIVED_PHASES = frozenset({Phase.STEP, Phase.REPLAY, Phase.LOST_STEP, Phase.UNATTRIBUTED})
"""Leaves that the reducer assigns; a span of one of them is refused by the recorder and ignored by the reducer."""

BLOCKING_PHASES = frozenset(
    {
        Phase.FIRST_BATCH,
        Phase.DATA_STALL,
        Phase.CHECKPOINT_BLOCKING,
        Phase.COMPILE,
        Phase.RECOMPILE,
        Phase.EVALUATION,
        Phase.HANG,
        Phase.FINAL_CHECKPOINT,
        Phase.IN_TRAINER_PUBLISH,
    }
)
"""Spans of these on the loop's thread take their time out of the step that they overlap (section 5)."""

SHUTDOWN_PHASES = frozenset({Phase.FINAL_CHECKPOINT, Phase.IN_TRAINER_PUBLISH, Phase.TEARDOWN})

PROGRESS_PHASES = SHUTDOWN_PHASES | {
    Phase.CHECKPOINT_BLOCKING,
    Phase.DATA_STALL,
    Phase.EVALUATION,
    Phase.COMPILE,
    Phase.RECOMPILE,
}
"""Closed in-loop and shutdown phases: after the first step each is a sign of progress (section 1)."""


class L1(StrEnum):
    """Level 1: every instant of wall time has exactly one of these (section 3)."""

    TTS = "tts"
    RECOVERY = "recovery"
    IN_LOOP = "in_loop"
    SHUTDOWN = "shutdown"
    PRODUCTIVE = "productive"


class Cause(StrEnum):
    """Why an attempt ended without completing the job."""

    PREEMPTION = "preemption"
    INFRASTRUCTURE = "infrastructure"
    APPLICATION = "application"
    DATA = "data"
    HANG = "hang"
    CANCELLED = "cancelled"
    PLANNED = "planned"


NOT_A_FAULT = frozenset({Cause.PREEMPTION, Cause.CANCELLED, Cause.PLANNED})
"""Left out of failure rates across runs (section 3)."""


class Provenance(StrEnum):
    """What a boundary rests on, best first (section 7)."""

    MEASURED = "measured"
    INFERRED = "inferred"
    ESTIMATED = "estimated"


class Point(StrEnum):
    """Names of the points that the reducer understands. Other names are kept and counted, never an error."""

    # launcher and scheduler; each carries attempt=N
    SUBMITTED = "submitted"
    ALLOCATED = "allocated"
    LAUNCHED = "launched"
    DETECTED = "detected"
    RELEASED = "released"
    # any source
    FAILURE = "failure"
    # trainer
    STREAM = "stream"
    RESTORED = "restored"
    WARM_START = "warm_start"
    PREEMPTION_NOTICE = "preemption_notice"
    PREEMPTION_SAVE_SKIPPED = "preemption_save_skipped"
    CHECKPOINT_DISPATCHED = "checkpoint_dispatched"
    CHECKPOINT_DURABLE = "checkpoint_durable"
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT_REJECTED = "checkpoint_rejected"
    CHECKPOINT_PRUNED = "checkpoint_pruned"
    COMPLETED = "completed"
    METRICS = "metrics"
    COMPILE_CACHE = "compile_cache"
    RECOMPILE_LIMIT = "recompile_limit"
    # airflow: the operators' own stamps
    TASK_CODE_START = "task_code_start"
    TASK_SUBMIT = "task_submit"
    TASK_DEFER = "task_defer"
    TASK_RESUME = "task_resume"
    TASK_END = "task_end"
    # airflow: REST
    TASK_TRY = "task_try"
    DAG_RUN = "dag_run"
    SNAPSHOT_LIVE = "snapshot_live"
    SNAPSHOT_REGISTERED = "snapshot_registered"


JOB_TASKS = frozenset({None, "launch", "train"})
"""Tasks whose processes and launcher points belong to the training job; None = not said."""

_PROCESS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class EventError(ValueError):
    """A value that does not belong into the log; the message says which and what would."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Who writes one stream of events.

    job         "<refresh>/<run>", the same for every process of the job
    process     unique per incarnation of a process; becomes the folder's name, so letters, digits, ``._-`` only
    attempt     1..N; None for a process that outlives attempts (each of its points then carries attempt=)
    rank, world_size   of a trainer; None otherwise
    devices     accelerators that this process holds; None if unknown
    task        the task of the refresh that the process works for; None, "launch" and "train" are the training job,
                the processes of any other task have no part in the job's time
    """

    job: str
    source: Source
    process: str
    attempt: int | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: int | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if not _PROCESS_NAME.fullmatch(self.process):
            raise EventError(
                f"process name {self.process!r} cannot be a folder name: use letters, digits, '.', '_' and '-', "
                "for example 'trainer-a1-r0'"
            )
        if not self.job:
            raise EventError("job is empty: give '<refresh>/<run>', the same for every process of the job")
        object.__setattr__(self, "source", Source(self.source))
