"""Copies of a batch to the GPU and of a checkpoint's tensors from it, through pinned and through pageable memory.

`blocked_ms` is until the call returns to the training loop, `gb_per_s` counts until the bytes have arrived.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from enum import StrEnum

import torch

from tests.gpu.bench import Bench, Size
from tests.gpu.findings import Finding, Verdict

CHECK = "staging"
REPEATS = 7
BATCH_BYTES = {Size.FULL: 16 * 2**20, Size.TOY: 2**12}
CHECKPOINT_BYTES = {Size.FULL: 2 * 2**30, Size.TOY: 2**14}


class Memory(StrEnum):
    PAGEABLE = "pageable"
    PINNED = "pinned"


def findings(bench: Bench) -> Iterator[Finding]:
    bench.require_seconds(30)
    kinds = list(Memory) if bench.on_gpu else [Memory.PAGEABLE]
    for subject, size, copies in (
        ("batch to the device", BATCH_BYTES[bench.size], _batch),
        ("checkpoint to the host", CHECKPOINT_BYTES[bench.size], _checkpoint),
    ):
        for memory in kinds:
            yield _measure(f"{subject}, {memory}", size, copies(bench, size, memory), bench)
    if not bench.on_gpu:
        yield Finding.skipped(CHECK, "pinned memory needs a GPU")
    yield from _stager(bench)


Copy = tuple[Callable[[], None], torch.Tensor, torch.Tensor]
"""Starts the copy; source and target, which must be equal once it has arrived."""


def _batch(bench: Bench, size: int, memory: Memory) -> Copy:
    source = torch.arange(size // 4, dtype=torch.float32, pin_memory=memory is Memory.PINNED)
    target = torch.empty_like(source, device=bench.device)
    return lambda: _start(target, source), source, target


def _checkpoint(bench: Bench, size: int, memory: Memory) -> Copy:
    source = torch.arange(size // 4, dtype=torch.float32, device=bench.device)
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=memory is Memory.PINNED)
    return lambda: _start(target, source), source, target


def _start(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _measure(subject: str, size: int, copy: Copy, bench: Bench) -> Finding:
    start_copy, source, target = copy
    blocked, arrived = [], []
    for _ in range(REPEATS + 1):  # the first one touches the memory
        _wait(bench)
        start = time.perf_counter()
        start_copy()
        blocked.append(time.perf_counter() - start)
        _wait(bench)
        arrived.append(time.perf_counter() - start)
    return Finding(
        check=CHECK,
        subject=subject,
        verdict=Verdict.PASSED if torch.equal(source.cpu(), target.cpu()) else Verdict.FAILED,
        figures={
            "megabytes": size / 1e6,
            "blocked_ms": 1000 * statistics.median(blocked[1:]),
            "gb_per_s": size / 1e9 / statistics.median(arrived[1:]),
        },
    )


def _stager(bench: Bench) -> Iterator[Finding]:
    """The checkpointer's own stager, where its dependencies are installed."""
    try:
        from trainer.checkpoint.staging import Stager, Staging
    except ImportError as error:
        yield Finding.skipped(f"{CHECK}, the trainer's stager", f"it cannot be imported here: {error}")
        return
    size = CHECKPOINT_BYTES[bench.size]
    source = torch.arange(size // 4, dtype=torch.float32, device=bench.device)
    stager, blocked = Stager(0), []
    for _ in range(REPEATS + 1):
        _wait(bench)
        start = time.perf_counter()
        staged = stager.stage({"model": {"table": source}}, Staging.COPY)
        blocked.append(time.perf_counter() - start)
    (copied,) = [part.data for part in staged.parts if isinstance(part.data, torch.Tensor)]
    yield Finding(
        check=CHECK,
        subject="checkpoint by the trainer's stager",
        verdict=Verdict.PASSED if torch.equal(copied, source.cpu()) else Verdict.FAILED,
        figures={
            "megabytes": size / 1e6,
            "first_blocked_ms": 1000 * blocked[0],
            "blocked_ms": 1000 * statistics.median(blocked[1:]),
        },
        note="returns once all bytes have arrived",
    )


def _wait(bench: Bench) -> None:
    if bench.on_gpu:
        torch.cuda.synchronize()
