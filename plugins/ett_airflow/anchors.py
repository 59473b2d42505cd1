"""The anchor checkpoints that earlier runs of a refresh left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, RunSpec, SpecError, WarmStart, Window, load_run_spec

ANCHOR_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Anchor:
    """A committed anchor checkpoint: the run that wrote it, as it was resolved."""

    folder: RunFolder
    spec: RunSpec

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
        return WarmStart(run=self.run, anchor=str(self.folder.anchor_dir))


def completed_anchors(refresh_root: Path) -> Sequence[Anchor]:
    """Anchors below `ROOT/<refresh>` whose manifest is committed, oldest window first.

    A run folder whose spec cannot be read (another release's format) is no candidate.
    """
    found = []
    for manifest in refresh_root.glob(f"*/anchor/{ANCHOR_MANIFEST}"):
        folder = RunFolder(manifest.parent.parent)
        try:
            found.append(Anchor(folder, load_run_spec(folder.spec_path)))
        except SpecError:
            continue
    return sorted(found, key=lambda anchor: (anchor.window.end, anchor.window.start, anchor.run))
