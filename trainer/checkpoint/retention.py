"""Which checkpoints there are, and which may go: nothing is pruned but after the commit of a newer one (case C1)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.durable import check_size
from trainer.checkpoint.errors import CheckpointError, OtherVersionError
from trainer.checkpoint.manifest import CheckpointRef, Manifest, step_of

_ASIDE = ".tmp"


@dataclass(frozen=True)
class Pruned:
    """Steps deleted, and what could not be: `failures` are messages that name the folder."""

    steps: Sequence[int]
    failures: Sequence[str]


def step_folders(checkpoints: Path) -> list[Path]:
    """Folders that are named as committed checkpoints, newest first. A save that did not commit has another name."""
    if not checkpoints.is_dir():
        return []
    numbered = [(step, folder) for folder in checkpoints.iterdir() if (step := step_of(folder)) is not None]
    return [folder for _, folder in sorted(numbered, reverse=True)]


def newest_complete(checkpoints: Path) -> CheckpointRef | None:
    """The newest checkpoint whose manifest and file sizes are right; content is hashed when it is restored.

    Raises:
        OtherVersionError: the newest was written by another release; older ones are not silently taken instead.
    """
    for folder in step_folders(checkpoints):
        try:
            manifest = Manifest.read(folder)
            for name, record in manifest.files.items():
                check_size(folder / name, record)
        except OtherVersionError:
            raise
        except CheckpointError:
            continue
        return CheckpointRef(folder, manifest.progress.step, manifest.progress.cursor)
    return None


def prune(checkpoints: Path, *, committed: int, keep: int) -> Pruned:
    """Delete all but the newest `keep` of the checkpoints up to the one just committed, at step `committed`.

    Later steps are from before a rewind: a damaged one that was passed over on restore must not count as kept.
    A delete that fails is told, not raised: a stuck file must not keep others from being deleted, nor stop training.
    """
    steps, failures = [], []
    for folder in [folder for folder in step_folders(checkpoints) if (step_of(folder) or 0) <= committed][keep:]:
        doomed = folder.with_name(f"{folder.name}.pruned{_ASIDE}")
        try:
            folder.rename(doomed)  # first out of sight, so that a half-deleted folder is never a candidate
            shutil.rmtree(doomed)
        except OSError as error:
            failures.append(f"{folder}: {error}")
            continue
        steps.append(int(folder.name.removeprefix("step-")))
    return Pruned(sorted(steps), failures)


def sweep(folder: Path, *, prefix: str, own: str) -> list[str]:
    """Delete what earlier attempts left unfinished: `<prefix>...tmp` without `own` in the name. Tells failures."""
    failures = []
    for left in folder.glob(f"{prefix}*{_ASIDE}") if folder.is_dir() else ():
        if own in left.name:
            continue
        try:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError as error:
            failures.append(f"{left}: {error}")
    return failures
