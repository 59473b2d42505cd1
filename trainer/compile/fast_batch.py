"""The fast batch (paper section IV-A2): compilation from the contract alone, with no data, no tables and no other rank.

A twin of the model with tables of a few rows is run once on synthetic rows, which shows what reaches each part that is
compiled; then the twin's parts are compiled on that. Compiled code belongs to the code, not to the module, so what the
twin has compiled serves the model itself, which other stages may shard and restore at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from trainer.compile import tower
from trainer.dpp.batch import synthetic_batch
from trainer.model import build_model
from trainer.spec import RefreshSpec

TWIN_ROWS = 8
"""Rows of every table of the twin; no shape that is compiled depends on it."""


@dataclass(frozen=True)
class PartInputs:
    """What one part was called with."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def compile_ahead(spec: RefreshSpec, choice: tower.Choice, device: torch.device) -> None:
    """Compile forward and backward of every part that `tower.install` compiles, for batches of the spec's size.

    Safe beside other stages of startup: it touches no module but its own. Not collective.

    Raises:
        ModelFactoryError: the model cannot be built.
        UntracedModuleError: as `tower.install`.
    """
    small = with_small_tables(spec)
    twin = build_model(small, device="cpu")
    rows = max(2, spec.training.batch_size)
    inputs = part_inputs(twin, small, rows)
    twin.to(device)
    for part in tower.install(twin, choice):
        if (called := inputs.get(part.name)) is not None:
            arguments, keywords = tree_map_only(
                torch.Tensor, lambda tensor: _like(tensor, device), (called.arguments, called.keywords)
            )
            part.compile_on(arguments, keywords)


def with_small_tables(spec: RefreshSpec) -> RefreshSpec:
    """`spec` with tables of a few rows and nothing else changed."""
    columns = [
        column
        if column.num_embeddings is None
        else column.model_copy(update={"num_embeddings": min(TWIN_ROWS, column.num_embeddings)})
        for column in spec.contract.columns
    ]
    contract = spec.contract.model_copy(update={"columns": columns})
    return spec.model_copy(update={"contract": contract})


def part_inputs(model: nn.Module, spec: RefreshSpec, rows: int) -> dict[str, PartInputs]:
    """What each compiled part gets in a forward of `model` over `rows` synthetic rows; `model` stays eager."""
    seen: dict[str, PartInputs] = {}
    parts = tower.compiled_parts(model)

    def observer(name: str) -> Any:
        return lambda _, arguments, keywords: seen.setdefault(name, PartInputs(arguments, keywords)) and None

    hooks = [part.register_forward_pre_hook(observer(name), with_kwargs=True) for name, part in parts.items()]
    try:
        with torch.enable_grad():
            batch = synthetic_batch(spec, rows, spec.training.seed)
            model(batch.dense, batch.sparse)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same values as a leaf, on `device`, that needs a gradient where `tensor` does."""
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
