"""The anchor checkpoints that earlier runs of a refresh left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, RunSpec, SpecError, WarmStart, Window, load_run_spec
from trainer.storage import CheckpointPlace, StoragePath, is_committed

STALE_FILE = "stale.json"


@dataclass(frozen=True)
class Anchor:
    """A committed anchor checkpoint: the run that wrote it, as it was resolved."""

    folder: RunFolder
    spec: RunSpec

    @property
    def stale(self) -> bool:
        """Whether a day that it was built on has been trained again since."""
        return (self.folder.root / STALE_FILE).exists()

    @property
    def decided_unix_ns(self) -> int:
        return self.folder.spec_path.stat().st_mtime_ns

    @property
    def path(self) -> StoragePath:
        """The anchor's own folder, which need not be in the run folder."""
        return CheckpointPlace.of(self.folder, self.spec.refresh).anchor

    @property
    def run(self) -> str:
        return self.folder.run

    @property
    def window(self) -> Window:
        return self.spec.run.window

    def fits(self, spec: RefreshSpec) -> bool:
        """Whether its tables and layers are those of `spec`, so that training can go on from it."""
        before = self.spec.refresh
        return before.model == spec.model and before.contract == spec.contract

    def warm_start(self) -> WarmStart:
        return WarmStart(run=self.run, anchor=str(self.path))


def completed_anchors(refresh_root: Path) -> Sequence[Anchor]:
    """Anchors below `ROOT/<refresh>` whose manifest is committed, oldest window first, of one window the best last.

    The better of two is the one that is not stale, then the one whose run was decided later.

    A run folder whose spec cannot be read (another release's format) is no candidate.

    Raises:
        OSError: the storage that a run names cannot be reached; no run is to start from an older anchor for that.
    """
    found = []
    for spec_path in refresh_root.glob("*/spec.yaml"):
        folder = RunFolder(spec_path.parent)
        try:
            anchor = Anchor(folder, load_run_spec(spec_path))
        except SpecError:
            continue
        if is_committed(anchor.path):
            found.append(anchor)
    return sorted(found, key=lambda anchor: (anchor.window.end, not anchor.stale, anchor.decided_unix_ns))
