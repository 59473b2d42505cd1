"""The compile cache of one attempt: a fresh folder on this node that its ranks share, filled from the archive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainer.compile import kernels
from trainer.compile.cache import CacheLookup, CompileArchive, CompileKey, GraphCacheUse, empty, use_folder


class ArtifactPolicy(StrEnum):
    """What happens to compiled code when the attempt ends."""

    ARCHIVED = "archived"  # kept for the refresh's later attempts and runs
    DISCARDED = "discarded"  # compiled anew by every attempt


@dataclass(frozen=True, kw_only=True)
class AttemptCache:
    """Where one attempt compiles. Nothing that an earlier attempt left on the node is in the folder."""

    folder: Path
    archive: CompileArchive
    key: CompileKey
    policy: ArtifactPolicy

    def prepare(self) -> None:
        """Compile into the folder from now on; every rank, before the first compilation."""
        use_folder(self.folder)
        kernels.compile_in_process(self.key.parts["device"])
        if self.policy is ArtifactPolicy.ARCHIVED:
            kernels.skip_instruction_set_probe()

    def fill(self) -> CacheLookup | None:
        """Take the archive into the folder; one rank of each node, before the first compilation."""
        return self.archive.unpack(self.key, self.folder) if self.policy is ArtifactPolicy.ARCHIVED else None

    def keep(self, used: GraphCacheUse) -> int:
        """Archive the folder if it has what the archive lacks; one rank, when no other is compiling. Returns bytes."""
        if self.policy is ArtifactPolicy.DISCARDED or not used.misses:
            return 0
        return self.archive.publish(self.key, self.folder)

    def remove(self) -> None:
        """Delete the folder; one rank of each node, at the end."""
        empty(self.folder)


def cache_attrs(lookup: CacheLookup | None, used: GraphCacheUse, archived_bytes: int) -> dict[str, Any]:
    """What the event log says: a hit is one of every graph, and a miss names the parts of the key that changed."""
    attrs: dict[str, Any] = {"graph_hits": used.hits, "graph_misses": used.misses, "archived_bytes": archived_bytes}
    if lookup is not None:
        attrs.update(hit=lookup.hit and not used.misses, key=lookup.key, changed=lookup.changed)
    return attrs
