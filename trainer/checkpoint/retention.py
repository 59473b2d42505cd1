"""Which checkpoints there are, and which may go: nothing is pruned but after the commit of a newer one (case C1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trainer.checkpoint.commit import Save
from trainer.checkpoint.durable import check_size, sync_folder
from trainer.checkpoint.errors import CheckpointError, MissingManifestError, OtherVersionError
from trainer.checkpoint.manifest import CheckpointKind, CheckpointRef, Manifest, SaveId, StepFolder
from trainer.storage import (
    MANIFEST_NAME,
    CheckpointPlace,
    StoragePath,
    is_committed,
    names_in,
    remove_file,
    remove_folder,
)


@dataclass(frozen=True)
class Pruned:
    """Steps deleted, and what could not be: `failures` are messages that name the folder."""

    steps: Sequence[int]
    failures: Sequence[str]


def committed_folders(checkpoints: StoragePath) -> list[StoragePath]:
    """Folders of committed saves, newest first; of what is in them only the manifest's being there is looked at.

    Raises:
        OSError: the storage cannot be reached.
    """
    return [folder for _, folder in sorted(_saves(checkpoints), reverse=True) if is_committed(folder)]


def newest_complete(checkpoints: StoragePath) -> CheckpointRef | None:
    """The newest checkpoint whose manifest and file sizes are right; content is hashed when it is restored.

    Raises:
        OtherVersionError: the newest was written by another release; older ones are not silently taken instead.
        OSError: the storage cannot be reached.
    """
    for folder in committed_folders(checkpoints):
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


def prune(
    checkpoints: StoragePath,
    *,
    committed: CheckpointRef,
    keep: int,
    restored: CheckpointRef | None = None,
    rejected: Collection[str] = (),
) -> Pruned:
    """Delete all but the newest `keep` of the checkpoints up to the one just committed.

    Later steps are from before a rewind: a damaged one that was passed over on restore must not count as kept. Nor do
    those up to it that were `rejected` (names of folders). The one that this attempt was restored from stays as long as
    nothing newer is committed. A delete that fails is told, not raised: a stuck file must not keep others from being
    deleted, nor stop training.
    """
    steps: list[int] = []
    failures: list[str] = []
    last = StepFolder.parse(committed.path.name)
    if last is None:
        return Pruned(steps, failures)
    kept = 0
    for name, folder in sorted(_saves(checkpoints), reverse=True):
        if name > last or not _told(folder, failures, is_committed):
            continue
        kept += folder.name not in rejected
        if kept <= keep and folder.name not in rejected:
            continue
        if restored is not None and folder == restored.path and committed.step <= restored.step:
            continue
        if _told(folder, failures, _delete):
            steps.append(name.step)
    return Pruned(sorted(steps), failures)


def sweep(place: CheckpointPlace) -> Pruned:
    """Delete what earlier attempts left uncommitted. Call it before any rank writes. Tells failures.

    Nothing is deleted where it cannot be told what is committed: beside a damaged manifest, in a store out of reach.
    """
    failures: list[str] = []
    _told(place.checkpoints, failures, lambda folder: _sweep_uncommitted(folder, failures))
    _told(place.anchor, failures, lambda folder: _sweep_anchor(folder, failures))
    return Pruned([], failures)


def clear_away(
    place: CheckpointPlace,
    save: Save,
    *,
    committed: CheckpointRef,
    keep: int,
    restored: CheckpointRef | None,
    rejected: Collection[str],
) -> Pruned:
    """On rank 0, after a commit: what it makes superfluous. A delete that fails costs room, not the checkpoint.

    Every rank has reported for this save, so none still writes an earlier one of this attempt: those that did not
    commit go. So do the files of an anchor that this one replaces, and the checkpoints beyond `keep` (see `prune`).
    """
    failures: list[str] = []
    own = save.save_id

    def is_over(each: SaveId) -> bool:
        return each.incarnation == own.incarnation and each.number < own.number

    _told(place.checkpoints, failures, lambda folder: _sweep_uncommitted(folder, failures, of=is_over))
    if save.kind is CheckpointKind.ANCHOR:
        _told(place.anchor, failures, lambda folder: _sweep_anchor(folder, failures))
        return Pruned([], failures)
    try:
        pruned = prune(place.checkpoints, committed=committed, keep=keep, restored=restored, rejected=rejected)
    except OSError as error:
        return Pruned([], [*failures, str(error)])
    return Pruned(pruned.steps, [*failures, *pruned.failures])


def _sweep_uncommitted(
    checkpoints: StoragePath, failures: list[str], *, of: Callable[[SaveId], bool] = lambda _: True
) -> bool:
    """Delete the folders of saves that never committed, if `of` them; what could not be goes to `failures`.

    Raises:
        OSError: the storage cannot be reached.
    """
    for name, folder in _saves(checkpoints):
        if of(name.save) and _told(folder, failures, lambda each: not is_committed(each)):
            _told(folder, failures, _delete)
    return True


def _sweep_anchor(anchor: StoragePath, failures: list[str]) -> bool:
    """Delete the files beside the anchor that its manifest does not list: of saves that never committed, or earlier.

    Raises:
        OSError: the storage cannot be reached.
    """
    names = names_in(anchor)
    try:
        listed = {MANIFEST_NAME, *Manifest.read(anchor).files} if names else set()
    except MissingManifestError:
        listed = set()
    except CheckpointError:
        return False
    for name in names:
        if name not in listed:
            _told(anchor / name, failures, _delete_file)
    return True


def _saves(checkpoints: StoragePath) -> list[tuple[StepFolder, StoragePath]]:
    parsed = [(StepFolder.parse(name), checkpoints / name) for name in names_in(checkpoints)]
    return [(name, folder) for name, folder in parsed if name is not None]


def _delete(folder: StoragePath) -> bool:
    """The manifest goes first, so that a half-deleted folder is never a candidate."""
    remove_file(folder / MANIFEST_NAME)
    sync_folder(folder)
    remove_folder(folder)
    return True


def _delete_file(path: StoragePath) -> bool:
    remove_file(path)
    return True


def _told(path: StoragePath, failures: list[str], action: Callable[[StoragePath], bool]) -> bool:
    """What `action` says of the path; False where it fails, which goes to `failures`."""
    try:
        return action(path)
    except (OSError, CheckpointError) as error:
        failures.append(f"{path}: {error}")
        return False
