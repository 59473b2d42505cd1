"""Checkpoints: staged in one copy pass, committed in one atomic step, verified before they are read (paper IV-C)."""

from trainer.checkpoint.errors import CheckpointError
from trainer.checkpoint.manifest import CheckpointKind, CheckpointRef, Lineage, Manifest, spec_digest
from trainer.checkpoint.outlook import Durable
from trainer.checkpoint.progress import Progress, RankProgress
from trainer.checkpoint.reference import read_reference, reference_table
from trainer.checkpoint.restore import Restored, load_unsharded, restore, restore_newest, verify
from trainer.checkpoint.retention import newest_complete
from trainer.checkpoint.writer import Checkpointer, CheckpointMode

__all__ = [
    "CheckpointError",
    "CheckpointKind",
    "CheckpointMode",
    "CheckpointRef",
    "Checkpointer",
    "Durable",
    "Lineage",
    "Manifest",
    "Progress",
    "RankProgress",
    "Restored",
    "load_unsharded",
    "newest_complete",
    "read_reference",
    "reference_table",
    "restore",
    "restore_newest",
    "spec_digest",
    "verify",
]
