"""A plain PyTorch training loop that measures its ETT%: no trainer of ours, no Airflow.

    python docs/examples/plain_pytorch.py RUN_FOLDER --die-after 50
    python docs/examples/plain_pytorch.py RUN_FOLDER
    python -m ett_reports run RUN_FOLDER

The second line resumes, and is attempt 2 of the same job.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.recorder import Recorder

BATCH, BATCHES, SAVE_EVERY, EVALUATE_EVERY = 64, 60, 20, 30
PLANNED = BATCH * BATCHES


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small ranker and record where the time goes.")
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--die-after", type=int, default=0, metavar="STEPS", help="die like a killed process")
    arguments = parser.parse_args()
    events = arguments.run_folder / "events"
    attempt = 1 + len(list(events.glob("trainer-*")))
    identity = ProcessIdentity(
        job="plain-pytorch/first-run",
        source=Source.TRAINER,
        process=f"trainer-a{attempt}-r0",
        attempt=attempt,
        rank=0,
        world_size=1,
        devices=1,
    )
    with Recorder(events, identity) as recorder:
        train(recorder, arguments.run_folder / "checkpoint.pt", arguments.die_after)


def train(recorder: Recorder, checkpoint: Path, die_after: int) -> None:
    """One attempt: start or resume, train to the end of the planned stream, evaluating and saving on the way."""
    recorder.point("stream", planned_samples=PLANNED)
    with recorder.span(Phase.TRAIN_MODULE):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters())
    step = 0
    if checkpoint.exists():
        with recorder.span(Phase.CHECKPOINT_RESTORE):
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            step = saved["step"]
        recorder.point("restored", cursor=step * BATCH, step=step, checkpoint=checkpoint.name)

    recorder.begin_steps(cursor=step * BATCH)  # 1 of 3: the loop begins
    while step < BATCHES:
        features, labels = batch(step)
        loss = nn.functional.binary_cross_entropy_with_logits(model(features).squeeze(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        recorder.step(cursor=step * BATCH)  # 2 of 3: a step is complete
        if step == die_after:
            os._exit(1)
        if step % EVALUATE_EVERY == 0:
            with recorder.span(Phase.EVALUATION):
                evaluate(model)
        if step % SAVE_EVERY == 0:
            save(recorder, checkpoint, model, optimizer, step)
    recorder.point("completed", cursor=step * BATCH)  # 3 of 3: the stream is consumed


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Batch `number` of the stream, the same in every attempt: [BATCH, 16] features, [BATCH] labels."""
    generator = torch.Generator().manual_seed(number)
    features = torch.randn(BATCH, 16, generator=generator)
    return features, (features.sum(1) > 0).float()


def evaluate(model: nn.Module) -> float:
    """Accuracy on batches that are never trained on."""
    with torch.no_grad():
        held_out = [batch(-1 - number) for number in range(20)]
        right = [((model(features).squeeze(1) > 0) == (labels > 0)).float().mean() for features, labels in held_out]
    return float(torch.stack(right).mean())


def save(recorder: Recorder, checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A save that blocks the loop; whole or not at all."""
    recorder.point("checkpoint_dispatched", step=step)
    with recorder.span(Phase.CHECKPOINT_BLOCKING):
        aside = checkpoint.with_suffix(".tmp")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, aside)
        aside.replace(checkpoint)
    recorder.point("checkpoint_durable", step=step, bytes=checkpoint.stat().st_size)


if __name__ == "__main__":
    main()
