"""Real ranks over gloo, forked from a server that has imported torch once."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 200.0


def run_ranks(world_size: int, action: Callable[..., Any], root: Path, *arguments: Any) -> list[Any]:
    """Run `action(root, *arguments)` on every rank; what each returned, or its negative exit code if it was killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchrec", "trainer.checkpoint", "trainer.model.sharding"])
    root.mkdir(parents=True, exist_ok=True)
    meeting = root / f"meeting-{action.__name__}-{world_size}-{len(list(root.iterdir()))}"
    pipes, ranks = [], []
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, world_size, meeting, sender, action, root, *arguments))
        process.start()
        sender.close()
        pipes.append(receiver)
        ranks.append(process)
    return [_outcome(process, pipe) for process, pipe in zip(ranks, pipes, strict=True)]


def _outcome(process: Any, pipe: Any) -> Any:
    try:
        outcome = pipe.recv() if pipe.poll(PATIENCE_S) else "silent"
    except EOFError:
        outcome = None
    process.join(20)
    if process.is_alive():
        process.kill()
        process.join()
    if outcome is None:
        return process.exitcode
    if isinstance(outcome, str):
        raise AssertionError(outcome)
    return torch.load(io.BytesIO(outcome), weights_only=False)


def _rank(
    rank: int, world_size: int, meeting: Path, sender: Any, action: Callable[..., Any], root: Path, *arguments: Any
) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(meeting), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        stream = io.BytesIO()
        torch.save(action(root, *arguments), stream)  # tensors by value: this process is gone when they are read
        sender.send(stream.getvalue())
    except BaseException:
        sender.send(traceback.format_exc())
    sender.close()
    sys.stdout.flush()
    os._exit(0)
