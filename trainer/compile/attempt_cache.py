"""The compile cache of one attempt: a fresh folder on this node that its ranks share, filled from the archive."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainer.compile import instruction_set, kernels, mega_cache
from trainer.compile.archive import CacheLookup, CompileArchive, Compiled
from trainer.compile.cache import GraphCacheUse
from trainer.compile.folder import empty, use_folder
from trainer.compile.graph_keys import GraphKeyLog, why_missed
from trainer.compile.kernels import AutotunePolicy
from trainer.compile.key import CompileKey
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, Technique
from trainer.storage import StoragePath, located

log = logging.getLogger(__name__)


class ArtifactPolicy(StrEnum):
    """What happens to compiled code when the attempt ends."""

    ARCHIVED = "archived"  # kept for the refresh's later attempts and runs
    DISCARDED = "discarded"  # compiled anew by every attempt


class KeyPolicy(StrEnum):
    """What decides the compiler's keys."""

    STABLE = "stable"  # the graph, the releases and the type of host alone
    TORCH_DEFAULT = "torch_default"  # also paths of the installation, profiles of earlier runs; the host is probed


@dataclass(frozen=True, kw_only=True)
class AttemptCache:
    """Where one attempt compiles. Nothing that an earlier attempt left on the node is in the folder."""

    folder: Path
    archive: CompileArchive
    key: CompileKey
    policy: ArtifactPolicy
    keys: KeyPolicy = KeyPolicy.STABLE
    autotuning: AutotunePolicy = AutotunePolicy.NONE
    graphs: GraphKeyLog = field(default_factory=GraphKeyLog, compare=False)

    @classmethod
    def of(cls, spec: RefreshSpec, run_folder: RunFolder, *, folder: Path, device: str, threads: int) -> AttemptCache:
        """As the spec's techniques say; `folder` is this attempt's own on this node, `threads` those of a rank."""
        on = spec.optimizations.enabled
        pruned = AutotunePolicy.PRUNED if on(Technique.AUTOTUNE_PRUNING) else AutotunePolicy.SEARCHED
        return cls(
            folder=folder,
            archive=CompileArchive(archive_folder(spec, run_folder)),
            key=CompileKey.of(spec, device=device, threads=threads),
            policy=ArtifactPolicy.ARCHIVED if on(Technique.ARTIFACT_CACHE) else ArtifactPolicy.DISCARDED,
            keys=KeyPolicy.STABLE if on(Technique.STABLE_KEYS) else KeyPolicy.TORCH_DEFAULT,
            autotuning=pruned if spec.compilation.max_autotune else AutotunePolicy.NONE,
        )

    def prepare(self) -> None:
        """Compile into the folder from now on. Every rank, on each thread that compiles, before its first compilation.

        Torch keeps the compiler's settings for each thread. May be called again. Not collective.

        Raises:
            GemmChoicesError: as `kernels.autotune`.
        """
        use_folder(self.folder)
        device = self.key.parts["device"]
        kernels.compile_in_process(device)
        kernels.autotune(self.autotuning, device)
        if self.policy is ArtifactPolicy.ARCHIVED:
            kernels.precompile_headers_for_new_kernels_only()
        if self.keys is KeyPolicy.STABLE:
            kernels.forget_profiles()
            kernels.name_kernels_alike_everywhere()
            if device == "cpu":
                instruction_set.take(instruction_set.remembered_or_probed(self.archive.place))

    def fill(self) -> CacheLookup | None:
        """Take the archive into the folder; one rank of each node, after `prepare`, before the first compilation.

        Not collective, and safe beside other threads that do not compile. From here on the graphs' keys are logged.
        """
        if self.policy is ArtifactPolicy.DISCARDED:
            return None
        self.graphs.start()
        return self.archive.unpack(self.key, self.folder)

    def keep(self, used: GraphCacheUse) -> int:
        """Archive what was compiled if the archive lacks it; the one rank that leads, once no other is compiling.

        It must have called `fill`. Returns the archive's bytes, 0 where nothing was written. Never fails an attempt.
        """
        self.graphs.stop()
        if self.policy is ArtifactPolicy.DISCARDED or not used.misses:
            return 0
        on_cpu = self.key.parts["device"] == "cpu"
        compiled = Compiled(
            folder=self.folder if on_cpu else None, mega_cache=mega_cache.saved(), graphs=self.graphs.graphs
        )
        return self.archive.publish(self.key, compiled)

    def missed(self, lookup: CacheLookup | None, used: GraphCacheUse) -> list[str]:
        """Components of the compiler's own keys in which missed graphs differ from those in the archive."""
        if lookup is None or not used.misses:
            return []
        changed = why_missed(self.graphs.graphs, lookup.graphs)
        # A graph is kept with conditions on its sizes, which are looked at once its key is found.
        return changed or (["guards"] if lookup.hit and lookup.graphs else [])

    def remove(self) -> None:
        """Delete the folder; one rank of each node, at the end."""
        self.graphs.stop()
        empty(self.folder)


def archive_folder(spec: RefreshSpec, run_folder: RunFolder) -> StoragePath:
    """Where a refresh's archives are: beside its runs, or below the spec's `compilation.archive_root`."""
    if spec.compilation.archive_root is None:
        return run_folder.compile_cache_dir
    return located(spec.compilation.archive_root) / run_folder.refresh


def cache_attrs(
    lookup: CacheLookup | None, used: GraphCacheUse, archived_bytes: int, graphs_changed: list[str] | None = None
) -> dict[str, Any]:
    """What the event log says: a hit is one of every graph, and a miss names the parts of the key that changed."""
    attrs: dict[str, Any] = {"graph_hits": used.hits, "graph_misses": used.misses, "archived_bytes": archived_bytes}
    if lookup is not None:
        attrs.update(hit=lookup.hit and not used.misses, key=lookup.key, changed=lookup.changed)
        if lookup.refused:
            attrs["refused"] = lookup.refused
        if graphs_changed:
            attrs["graphs_changed"] = graphs_changed
    return attrs
