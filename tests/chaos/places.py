"""The places in the product where blows fall, by the name of the phase that the table shows."""

from __future__ import annotations

from injection.chaos_faults import SUPERVISOR, Place, after, at_point, before, entering, leaving

STARTUP = (
    "launcher_init",
    "device_init",
    "process_group",
    "preprocessing",
    "train_module",
    "plugin_init",
    "checkpoint_restore",
    "pre_train_setup",
    "compile",
    "first_batch",
)
"""The startup stages, by their phases in the event log, in order."""

STEP = "trainer.model.trainee:Trainee.step"
FORWARD = "torchrec.distributed.model_parallel:DistributedModelParallel.forward"
STAGE = "trainer.checkpoint.staging:Stager.stage"
WRITE_SHARDS = "trainer.checkpoint.shards:write_shards"
SAVE_BEFORE_EXIT = "trainer.checkpoint.writer:Checkpointer.save_before_exit"
WRITE_FILE = "trainer.checkpoint.durable:HashedFile.write"
SYNC = "trainer.atomic_file:sync"
REPORT_PART = "trainer.checkpoint.shards:ShardReport.write"
WRITE_MANIFEST = "trainer.checkpoint.manifest:Manifest.write"
DELETE_FOLDER = "trainer.checkpoint.retention:remove_folder"
WRITE_REFERENCE = "trainer.checkpoint.reference:write_reference"
MERGE_REFERENCES = "trainer.checkpoint.reference:merge_references"
OPEN_FILE = "trainer.dpp.plan:PlannedFile.open"


def first_step(process: str = "0") -> Place:
    """The first step is about to begin."""
    return before(STEP, process)


def mid_step(process: str = "0", *, nth: int = 12) -> Place:
    """Between forward and backward."""
    return after(FORWARD, process, nth=nth)


def between_steps(process: str = "0", *, nth: int = 12) -> Place:
    return after(STEP, process, nth=nth)


def staging(process: str = "0", *, save: int = 2) -> Place:
    """The state is copied, the copy not yet handed to the writer. The buffers were filled once ahead of the first."""
    return after(STAGE, process, nth=save + 1)


def upload(process: str = "0", *, save: int = 2) -> Place:
    """The rank's part is about to be written."""
    return before(WRITE_SHARDS, process, nth=save)


def uploaded(process: str = "0", *, save: int = 2) -> Place:
    """The rank's part is on the disk, and nobody has been told."""
    return before(REPORT_PART, process, nth=save)


def commit(*, save: int = 2) -> Place:
    """The manifest lies aside, on the disk, and is not renamed yet."""
    return after(SYNC, "0", nth=save, label="manifest.json")


def committed(*, save: int = 2) -> Place:
    """The manifest is in place, and the log does not say so yet."""
    return after(WRITE_MANIFEST, "0", nth=save)


def retention() -> Place:
    """The first checkpoint that is pruned has lost its manifest and has its other files still."""
    return before(DELETE_FOLDER, "0")


def stage_file(*, nth: int = 3) -> Place:
    """The stage file lies aside and is not renamed yet."""
    return before("pathlib:Path.replace", "0", nth=nth, label="stage.json")


def anchor_upload(process: str = "0") -> Place:
    """The anchor's part is on the disk; the rank's predictions on the holdout are about to be written."""
    return before(WRITE_REFERENCE, process)


def anchor_commit() -> Place:
    """All of the anchor is on the disk but its manifest."""
    return after(MERGE_REFERENCES, "0")


SHUTDOWN = {
    "evaluation": lambda process: entering("evaluation", process),
    "anchor: staging": lambda process: entering("final_checkpoint", process),
    "anchor: upload": anchor_upload,
    "anchor: commit": lambda process: anchor_commit() if process == "0" else leaving("evaluation", process),
    "teardown": lambda process: entering("teardown", process),
    "after teardown": lambda process: leaving("teardown", process),
}
"""Phase -> its place in a rank, in the order in which a rank meets them. The anchor is durable from "teardown" on."""

COMPLETED = at_point("completed")

SUPERVISOR_PLACES = {
    "queue": before("trainer.launch.capacity:Line.try_allocate", SUPERVISOR),
    "launch": after("trainer.launch.ranks:RankGroup.start", SUPERVISOR),
    "conclusion": before("trainer.launch.conclusion:keep_logs", SUPERVISOR),
}
"""Phases of the supervisor's own life."""
