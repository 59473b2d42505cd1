"""The first step of a dense tower: compiled with nothing cached, from an archive alone, from a kept cache folder.

    python -m tests.gpu.compile_check DEVICE SIZE write|read|ignore ARCHIVE   (one process; prints JSON)

The archive is PyTorch's Mega-Cache, which on a GPU holds the built kernels too. On CPU it does not, so only a GPU's
figures mean anything.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import torch
import torch._dynamo
from torch import nn

from tests.gpu.bench import Bench, Size
from tests.gpu.findings import Finding, Verdict
from trainer.compile import mega_cache
from trainer.kernels import PairwiseInteraction

CHECK = "compilation"
DENSE, BATCHES = 13, (2048, 1500)


class Use(StrEnum):
    """What a process does with the archive."""

    WRITE = "write"
    READ = "read"
    IGNORE = "ignore"


class Tower(nn.Module):
    """Dense arch, interaction, over arch, of the sizes of the public DLRM benchmarks, in plain torch."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        bottom, self.features, over = ([512, 256, 64], 26, [512, 512, 256]) if size is Size.FULL else ([8], 2, [4])
        self.width = bottom[-1]
        self.dense_arch = _layers([DENSE, *bottom])
        self.inter_arch = PairwiseInteraction(self.features)
        crossed = self.width + self.features * (self.features + 1) // 2
        self.over_arch = nn.Sequential(_layers([crossed, *over]), nn.Linear(over[-1], 1))

    def forward(self, dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """`dense` `[B, 13]`, `embedded` `[B, F, E]` -> logits `[B]`."""
        logits: torch.Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense), embedded)).squeeze(1)
        return logits


def findings(bench: Bench) -> Iterator[Finding]:
    bench.require_seconds(90)
    archive = bench.folder / "mega-cache"
    run = (bench.device.type, bench.size.value)

    def first_step(use: Use, caches: str) -> dict[str, float]:
        found: dict[str, float] = bench.child("tests.gpu.compile_check", *run, use, str(archive), **bench.fresh(caches))
        return found

    cold = first_step(Use.WRITE, "cold")
    sides = {
        "nothing cached": cold,
        "archive only": first_step(Use.READ, "elsewhere"),
        "cache folder kept": first_step(Use.IGNORE, "cold"),
    }
    for subject, figures in sides.items():
        same = figures["loss"] == cold["loss"] and figures["later_loss"] == cold["later_loss"]
        hit = subject == "nothing cached" or figures["graph_misses"] == 0
        yield Finding(
            check=CHECK,
            subject=subject,
            verdict=Verdict.PASSED if same and hit else Verdict.FAILED,
            figures={**figures, "saved_percent": 100 * (1 - figures["first_step_s"] / cold["first_step_s"])},
            note="" if same else "other losses than with nothing cached",
        )


def first_step(device: torch.device, size: Size, use: Use, archive: Path) -> dict[str, float]:
    """Seconds from a model to its first forward and backward, archive included, and the losses of two batch sizes."""
    torch.manual_seed(0)
    model = Tower(size).to(device)
    batches = [
        (torch.randn(rows, DENSE, device=device), torch.randn(rows, model.features, model.width, device=device))
        for rows in BATCHES
    ]
    start = time.monotonic()
    if use is Use.READ:
        mega_cache.load(archive.read_bytes())
    compiled = torch.compile(model, fullgraph=True)
    losses = []
    seconds = []
    for dense, embedded in batches:
        torch._dynamo.mark_dynamic(dense, 0)
        torch._dynamo.mark_dynamic(embedded, 0)
        loss = compiled(dense, embedded).square().mean()
        loss.backward()
        losses.append(loss.item())
        seconds.append(time.monotonic() - start)
    if use is Use.WRITE:
        _write(archive)
    counts = torch._dynamo.utils.counters
    return {
        "first_step_s": seconds[0],
        "later_step_s": seconds[1] - seconds[0],
        "graphs": counts["stats"]["unique_graphs"],
        "graph_hits": counts["inductor"]["fxgraph_cache_hit"],
        "graph_misses": counts["inductor"]["fxgraph_cache_miss"],
        "loss": losses[0],
        "later_loss": losses[1],
    }


def _write(archive: Path) -> None:
    kept = mega_cache.saved()
    if kept is None:
        raise RuntimeError("the Mega-Cache is empty after a compilation")
    archive.write_bytes(kept)


def _layers(sizes: list[int]) -> nn.Sequential:
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(part for inputs, outputs in pairs for part in (nn.Linear(inputs, outputs), nn.ReLU())))


if __name__ == "__main__":
    where, how_large, what, path = sys.argv[1:]
    print(json.dumps(first_step(torch.device(where), Size(how_large), Use(what), Path(path))))
