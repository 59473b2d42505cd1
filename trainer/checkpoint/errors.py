"""Everything that can be wrong with a checkpoint: one hierarchy; each error names the file and says what to do next."""

from __future__ import annotations

from trainer.storage import StoragePath


class CheckpointError(Exception):
    """A checkpoint that cannot be written or used.

    Attributes:
        path: the file or folder at fault.
    """

    def __init__(self, path: StoragePath, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class MissingManifestError(CheckpointError):
    """A folder without a manifest: its save never committed, or it is no checkpoint."""

    def __init__(self, path: StoragePath) -> None:
        super().__init__(path, "no manifest, so this save never committed; use another checkpoint of the run")


class DamagedManifestError(CheckpointError):
    """A manifest whose text is not what was written."""

    def __init__(self, path: StoragePath, detail: str) -> None:
        super().__init__(path, f"the manifest is damaged ({detail}); use another checkpoint of the run")


class OtherVersionError(CheckpointError):
    """A format version that this release does not read."""

    def __init__(self, path: StoragePath, *, found: object, supported: int) -> None:
        super().__init__(
            path,
            f"format version {found!r}, and this release reads version {supported}; "
            "read it with the release that wrote it, or start the run anew",
        )
        self.found = found
        self.supported = supported


class MissingFileError(CheckpointError):
    """A file that the manifest lists and the folder lacks."""

    def __init__(self, path: StoragePath) -> None:
        super().__init__(path, "listed in the manifest and missing; use another checkpoint of the run")


class TornFileError(CheckpointError):
    """A file of another size than the manifest says."""

    def __init__(self, path: StoragePath, *, size: int, expected: int) -> None:
        super().__init__(path, f"{size} bytes, the manifest says {expected}; use another checkpoint of the run")
        self.size = size
        self.expected = expected


class UnreadableFileError(CheckpointError):
    """A file that the disk does not give back."""

    def __init__(self, path: StoragePath, error: OSError) -> None:
        super().__init__(path, f"cannot be read: {error}; use another checkpoint of the run and check the storage")
        self.error = error


class ChangedFileError(CheckpointError):
    """A file of the right size and other content than was written."""

    def __init__(self, path: StoragePath, *, sha256: str, expected: str) -> None:
        super().__init__(
            path,
            f"its bytes changed since the save (SHA-256 {sha256[:12]}..., the manifest says {expected[:12]}...); "
            "use another checkpoint of the run and check the storage",
        )
        self.sha256 = sha256
        self.expected = expected


class PoisonedMetadataError(CheckpointError):
    """A pickle that asks for something that no checkpoint needs. Nothing of it was run."""

    def __init__(self, path: StoragePath, asked_for: str) -> None:
        super().__init__(
            path,
            f"its pickle asks for {asked_for}, which no checkpoint needs; nothing was run. "
            "Treat the folder as hostile: find out who wrote it, and do not load it with other tools",
        )
        self.asked_for = asked_for


class ForeignFileError(CheckpointError):
    """A checkpoint that speaks of files which are not its own: outside its folder, or not in its manifest."""

    def __init__(self, path: StoragePath, name: object) -> None:
        super().__init__(
            path,
            f"speaks of a file {name!r}, and a checkpoint's files are those that its manifest lists by plain names; "
            "nothing was read. Treat the folder as hostile: find out who wrote it",
        )
        self.name = name


class StateMismatchError(CheckpointError):
    """The checkpoint and the model hold different tensors."""

    def __init__(self, path: StoragePath, *, missing: list[str], unknown: list[str], reshaped: list[str]) -> None:
        parts = [
            f"{what}: {_some(names)}"
            for what, names in (
                ("the model has and the checkpoint lacks", missing),
                ("the checkpoint has and the model lacks", unknown),
                ("of another shape or type", reshaped),
            )
            if names
        ]
        super().__init__(
            path,
            "; ".join(parts) + ". Restore it with the spec that it was saved with, or start without this checkpoint",
        )
        self.missing = missing
        self.unknown = unknown
        self.reshaped = reshaped


class IncoherentSaveError(CheckpointError):
    """The ranks' parts of one save do not add up to one state."""

    def __init__(self, path: StoragePath, detail: str) -> None:
        super().__init__(path, f"the ranks' parts do not make one state: {detail}; the save was given up")


class CheckpointWriteError(CheckpointError):
    """A file could not be written."""

    def __init__(self, path: StoragePath, error: OSError) -> None:
        super().__init__(
            path, f"could not be written: {error}; free space or fix the storage, the next save tries again"
        )
        self.error = error


class NotDurableError(CheckpointError):
    """A save that had to be durable by now and is not."""

    def __init__(self, path: StoragePath, detail: str) -> None:
        super().__init__(
            path, f"is not durable: {detail}; the run has not succeeded, its next attempt resumes before this save"
        )


class PoisonedStateError(CheckpointError):
    """A state with NaN in it: a step went wrong without its loss showing it, and no resume would mend that."""

    def __init__(self, path: StoragePath, name: str) -> None:
        super().__init__(
            path,
            f"not saved: {name} has NaN in it, of a step since the last save. Look for operations without a finite "
            "gradient in the model (sqrt or log at 0), or lower the learning rates",
        )
        self.name = name


class PeerRefusedError(CheckpointError):
    """Another rank refused the checkpoint, so this one does too."""

    def __init__(self, path: StoragePath, *, rank: int, message: str) -> None:
        super().__init__(path, f"refused by rank {rank}: {message}")
        self.rank = rank


class PeerFailedError(CheckpointError):
    """Another rank failed for reasons that say nothing about the checkpoint, so this one stops too."""

    def __init__(self, path: StoragePath, *, rank: int, message: str) -> None:
        super().__init__(path, f"rank {rank} failed while it was being restored: {message}")
        self.rank = rank


def _some(names: list[str], limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
