"""The `optimizations` section of the refresh spec: every technique of the paper by name, each switchable alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from trainer.section import Section, enum_of


class Preset(StrEnum):
    BASELINE = "baseline"
    OPTIMIZED = "optimized"


class Technique(StrEnum):
    """Every technique that can be switched by name, in the order of the paper (section IV).

    What the trainer does without each one, and what each gains, is in `docs/startup.md`.
    """

    LOCAL_METADATA = "local_metadata"  # IV-A1: shard metadata from the plan, no collective per table
    PLAN_CACHE = "plan_cache"  # IV-A1: the plan of an unchanged model is not searched again
    SKIP_STATE_BROADCAST = "skip_state_broadcast"  # IV-A1: no rank sends weights that a checkpoint overwrites next
    FAST_BATCH = "fast_batch"  # IV-A2: compilation starts on a synthetic batch, before there are data
    PARALLEL_INIT = "parallel_init"  # IV-A2: stages that do not need each other run together
    DYNAMIC_SHAPES = "dynamic_shapes"  # IV-B: mark_dynamic on sizes that vary
    FIXED_BATCH = "fixed_batch"  # not in the paper: the last batch is padded, so that no size varies
    SKIP_MODULES = "skip_modules"  # IV-B: modules named in the spec are left out of tracing
    AUTOTUNE_PRUNING = "autotune_pruning"  # IV-B: committed kernel configurations instead of a search
    STABLE_KEYS = "stable_keys"  # IV-B: cache keys equal across processes, hosts of one type and attempts
    ARTIFACT_CACHE = "artifact_cache"  # IV-B: what one attempt compiled serves the next
    ASYNC_CHECKPOINT = "async_checkpoint"  # IV-C a, b
    WARM_STANDBY = "warm_standby"  # IV-E: ranks are forked from a process that has imported everything


OFF_BY_DEFAULT: frozenset[Technique] = frozenset()
"""Techniques that `optimized` leaves off, since measured here they cost more than they gain (docs/startup.md)."""


class Optimizations(Section):
    """A preset and exceptions to it by name."""

    preset: Annotated[Preset, enum_of(Preset)] = Preset.OPTIMIZED
    local_metadata: bool | None = None
    plan_cache: bool | None = None
    skip_state_broadcast: bool | None = None
    fast_batch: bool | None = None
    parallel_init: bool | None = None
    dynamic_shapes: bool | None = None
    fixed_batch: bool | None = None
    skip_modules: bool | None = None
    autotune_pruning: bool | None = None
    stable_keys: bool | None = None
    artifact_cache: bool | None = None
    async_checkpoint: bool | None = None
    warm_standby: bool | None = None

    def enabled(self, technique: Technique) -> bool:
        """Whether `technique` is on: its own switch if given, else what the preset says."""
        switch: bool | None = getattr(self, technique.value)
        if switch is not None:
            return switch
        return self.preset is Preset.OPTIMIZED and technique not in OFF_BY_DEFAULT

    def resolved(self) -> dict[str, bool]:
        """Every technique and its state."""
        return {technique.value: self.enabled(technique) for technique in Technique}
