"""First weights of the embedding tables, the same for a seed however the tables are sharded."""

from __future__ import annotations

import hashlib

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

_ROWS_PER_DRAW = 8192  # part of the definition: another value gives other weights for the same seed


def table_configs(model: nn.Module) -> dict[str, BaseEmbeddingConfig]:
    """The tables of an unsharded model, pooled and sequence tables, by the name of their weight in its state."""
    tables: dict[str, BaseEmbeddingConfig] = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection):
            group, configs = "embedding_bags", module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollection):
            group, configs = "embeddings", module.embedding_configs()
        else:
            continue
        tables.update({f"{path}.{group}.{config.name}.weight".removeprefix("."): config for config in configs})
    return tables


@torch.no_grad()
def initialize_tables(state: dict[str, torch.Tensor], tables: dict[str, BaseEmbeddingConfig], *, seed: int) -> None:
    """Draw every table's rows uniformly between its bounds (TorchRec's default is +-1/sqrt(rows)), in place.

    `state` is a state_dict, sharded or not. Rows are drawn in fixed blocks, each from its own seed, so that a rank
    draws only the blocks of its shards and any sharding yields the same table.
    """
    for name, config in tables.items():
        weight = state[name]
        if isinstance(weight, ShardedTensor):
            for shard in weight.local_shards():
                row, column = shard.metadata.shard_offsets
                _draw(shard.tensor, row=row, column=column, config=config, seed=seed)
        else:
            _draw(weight, row=0, column=0, config=config, seed=seed)


def _draw(target: torch.Tensor, *, row: int, column: int, config: BaseEmbeddingConfig, seed: int) -> None:
    """Fill `target`, whose first element is the table's `[row, column]`."""
    rows, columns = target.shape
    generator = torch.Generator()
    for block in range(row // _ROWS_PER_DRAW, -(-(row + rows) // _ROWS_PER_DRAW)):
        generator.manual_seed(_seed_of(seed, config.name, block))
        first = block * _ROWS_PER_DRAW
        drawn = torch.empty(min(_ROWS_PER_DRAW, config.num_embeddings - first), config.embedding_dim)
        drawn.uniform_(config.get_weight_init_min(), config.get_weight_init_max(), generator=generator)
        start, stop = max(row, first), min(row + rows, first + len(drawn))
        target[start - row : stop - row].copy_(drawn[start - first : stop - first, column : column + columns])


def _seed_of(seed: int, table: str, block: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{table}/{block}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # manual_seed takes 63 bits
