"""The words that readers see for the metric's names, and a sentence that says what each means."""

from __future__ import annotations

from ett_reports.events import L1, Cause, Component, Phase, Provenance, Source
from ett_reports.slo import TITLE, Health, Owned

COMPONENT: dict[Component, str] = {component: TITLE[Owned(component.value)] for component in Component}

COMPONENT_MEANING: dict[Component, str] = {
    Component.SCHEDULING: "waiting for devices, and from devices to the launcher's process",
    Component.TRAINER_INIT: "from the launcher's process to a trainer that can step",
    Component.PT2_COMPILE: "PyTorch 2 compilation, at start and later",
    Component.EFFECTIVE_TRAINING: "steps that moved the data cursor past its high-water mark",
    Component.WASTED_TRAINING: "in the loop without consuming new data",
    Component.SHUTDOWN: "final checkpoint, publishing in the trainer, release",
    Component.UNATTRIBUTED: "what no source explains",
}

LEVEL_1: dict[L1, str] = {
    L1.TTS: "Time to start",
    L1.RECOVERY: "Recovery",
    L1.IN_LOOP: "In-loop overhead",
    L1.SHUTDOWN: "Shutdown",
    L1.PRODUCTIVE: "Productive",
}

LEVEL_1_MEANING: dict[L1, str] = {
    L1.TTS: "submission to the first productive instant",
    L1.RECOVERY: "from the last sign of progress before a failure to the next productive instant",
    L1.IN_LOOP: "the rest after the first productive instant",
    L1.SHUTDOWN: "after the last productive step",
    L1.PRODUCTIVE: "steps on new data",
}

PHASE: dict[Phase, str] = {
    Phase.QUEUE_WAIT: "Queue wait",
    Phase.RETRY_WAIT: "Retry wait",
    Phase.HARDWARE_SETUP: "Hardware setup",
    Phase.LAUNCHER_INIT: "Launcher start",
    Phase.DEVICE_INIT: "Device initialization",
    Phase.PROCESS_GROUP: "Process group",
    Phase.PREPROCESSING: "Preprocessing warm-up",
    Phase.TRAIN_MODULE: "Model creation",
    Phase.PLUGIN_INIT: "Plugin initialization",
    Phase.PRE_TRAIN_SETUP: "Pre-training setup",
    Phase.CHECKPOINT_RESTORE: "Checkpoint restore",
    Phase.FIRST_BATCH: "First batch",
    Phase.COMPILE: "Compile",
    Phase.RECOMPILE: "Recompile",
    Phase.STEP: "Productive steps",
    Phase.REPLAY: "Replay",
    Phase.LOST_STEP: "Step cut short",
    Phase.CHECKPOINT_BLOCKING: "Checkpoint blocking",
    Phase.DATA_STALL: "Data stall",
    Phase.EVALUATION: "Evaluation",
    Phase.HANG: "Failure to detection",
    Phase.FINAL_CHECKPOINT: "Final checkpoint",
    Phase.IN_TRAINER_PUBLISH: "Publish in trainer",
    Phase.TEARDOWN: "Teardown",
    Phase.UNATTRIBUTED: "Unattributed",
}

CAUSE: dict[Cause, str] = {cause: cause.value.capitalize() for cause in Cause}

PROVENANCE_MEANING: dict[Provenance, str] = {
    Provenance.MEASURED: "a process wrote both boundaries",
    Provenance.INFERRED: "a boundary was taken from a neighbour",
    Provenance.ESTIMATED: "a boundary was clamped or moved by clock correction",
}

SOURCE: dict[Source, str] = {
    Source.TRAINER: "trainer",
    Source.LAUNCHER: "launcher",
    Source.SCHEDULER: "scheduler",
    Source.AIRFLOW: "Airflow",
}

HEALTH: dict[Health, str] = {
    Health.HEALTHY: "within",
    Health.BREACHED: "BREACHED",
    Health.DEGRADED: "degraded",
    Health.PENDING: "pending",
    Health.UNSET: "not set",
}

QUALITY: dict[str, str] = {
    "torn_lines": "torn lines",
    "invalid_events": "events that do not fit the schema",
    "duplicates": "duplicate events",
    "out_of_order": "events out of order",
    "unknown_kinds": "events of an unknown kind",
    "unknown_points": "points of an unknown name",
    "unknown_phases": "spans of an unknown phase",
    "other_version": "events of another schema version",
    "missing_sequence": "gaps in a process's numbering",
    "lost_writes": "events that a disk refused",
    "flight_windows": "step windows taken from a flight recorder",
    "dropped_cycles": "cycles dropped among recorded waits",
    "clamped_clocks": "clocks clamped, because no shift fits",
    "clock_steps": "steps of a wall clock",
    "concurrent_steps": "steps of two attempts at once",
    "unreadable_files": "files that cannot be read",
}
