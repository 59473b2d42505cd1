"""How a rank learns where the shards of every table are: from the plan, or by asking (paper IV-A1)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata, TensorProperties
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import data_type_to_dtype
from torchrec.modules.embedding_modules import EmbeddingCollection


class ShardMetadataSource(StrEnum):
    """How a rank learns where the shards of a table are."""

    PLAN = "plan"  # from the plan, which every rank has
    GATHERED = "gathered"  # one all_gather per table, as TorchRec did before the paper's fix


class BagSharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder of pooled tables, with the kinds that keep the optimizer in the backward, on any device.

    Upstream leaves row-wise out on CPU, where it works as well.
    """

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return _with_fused_optimizer(super().sharding_types("cuda"))


class SequenceSharder(EmbeddingCollectionSharder):
    """The same for tables that are looked up row by row; as upstream, it gathers the metadata of each table."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return _with_fused_optimizer(super().sharding_types(compute_device_type))


class PlannedSequenceSharder(SequenceSharder):
    """The same without a collective per table."""

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingCollection:
        return PlannedEmbeddingCollection(
            module,
            params,
            env,
            self.fused_params,
            device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            use_index_dedup=self._use_index_dedup,
            module_fqn=module_fqn,
        )

    @property
    def sharded_module_type(self) -> type[ShardedEmbeddingCollection]:
        return PlannedEmbeddingCollection


class PlannedEmbeddingCollection(ShardedEmbeddingCollection):
    """Sequence tables whose shards' places come from the plan, as upstream has it for pooled tables only."""

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        gathered = ShardedTensor._init_from_local_shards

        def planned(local_shards: Any, *size: Any, process_group: Any = None, **rest: Any) -> ShardedTensor:
            table = self._table_of(local_shards)
            if table is None:  # another thread's, or a table whose size the plan does not know
                return gathered(local_shards, *size, process_group=process_group, **rest)
            return ShardedTensor._init_from_local_shards_and_global_metadata(
                local_shards, self._planned_metadata(table), process_group=process_group
            )

        with _standing_in("_init_from_local_shards", planned):
            super()._initialize_torch_state(skip_registering)

    def _table_of(self, local_shards: Any) -> str | None:
        """The table whose own list of local shards this is."""
        for table, own in self._model_parallel_name_to_local_shards.items():
            if own is local_shards:
                return None if self._table_name_to_config[table].use_virtual_table else table
        return None

    def _planned_metadata(self, table: str) -> ShardedTensorMetadata:
        spec = self.module_sharding_plan[table].sharding_spec
        dtype = data_type_to_dtype(self._table_name_to_config[table].data_type)
        return spec.build_metadata(
            tensor_sizes=self._name_to_table_size[table], tensor_properties=TensorProperties(dtype=dtype)
        )


def sharders_for(source: ShardMetadataSource) -> list[ModuleSharder[nn.Module]]:
    """One sharder per kind of table. Plans do not depend on `source`."""
    sequences = PlannedSequenceSharder() if source is ShardMetadataSource.PLAN else SequenceSharder()
    return [BagSharder(), sequences]


@contextlib.contextmanager
def metadata_from(source: ShardMetadataSource) -> Iterator[None]:
    """Let sharding learn the places of pooled tables' shards from `source`.

    The gathered form brings back what TorchRec did before the paper's fix, for a fair baseline: calls from
    `_initialize_torch_state` go to the constructor that all-gathers each table's shard metadata.
    """
    if source is ShardMetadataSource.PLAN:
        yield
        return
    original = ShardedTensor._init_from_local_shards_and_global_metadata

    def gathered(local_shards: Any, sharded_tensor_metadata: Any, process_group: Any = None, **rest: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "_initialize_torch_state":
            return original(local_shards, sharded_tensor_metadata, process_group=process_group, **rest)
        return ShardedTensor._init_from_local_shards(
            local_shards, *sharded_tensor_metadata.size, process_group=process_group
        )

    with _standing_in("_init_from_local_shards_and_global_metadata", gathered):
        yield


@contextlib.contextmanager
def _standing_in(constructor: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Have `ShardedTensor` use `replacement` for one of its constructors."""
    original = vars(ShardedTensor)[constructor]
    setattr(ShardedTensor, constructor, staticmethod(replacement))
    try:
        yield
    finally:
        setattr(ShardedTensor, constructor, original)


def _with_fused_optimizer(kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind != ShardingType.DATA_PARALLEL.value]
