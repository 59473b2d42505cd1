"""What this process took from Inductor's cache, and the names that the startup graph uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch._dynamo.utils

from trainer.compile.archive import CacheLookup as CacheLookup
from trainer.compile.archive import CompileArchive as CompileArchive
from trainer.compile.key import CompileKey as CompileKey


@dataclass(frozen=True, kw_only=True)
class GraphCacheUse:
    """How many graphs of this process Inductor took from its cache, and how many it compiled."""

    hits: int
    misses: int

    @classmethod
    def so_far(cls) -> GraphCacheUse:
        counts = torch._dynamo.utils.counters["inductor"]
        return cls(hits=counts["fxgraph_cache_hit"], misses=counts["fxgraph_cache_miss"])
