"""What a reader of a report wants to know of the run, and what comparing two runs needs, from its resolved spec."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from trainer.spec import RunSpec


def run_title(spec: RunSpec) -> str:
    """The refresh and its days, such as `completejourney, 2026-11-28`."""
    window = spec.run.window
    last = window.end - timedelta(days=1)
    days = f"{window.start}" if window.start == last else f"{window.start} to {last}"
    return f"{spec.refresh.name}, {days}"


def run_summary(spec: RunSpec) -> dict[str, Any]:
    """Plain values by name; `ett_reports.compare` reads model, ranks and checkpoint_interval_s."""
    refresh, run = spec.refresh, spec.run
    return {
        "model": refresh.model.model_dump(mode="json"),
        "ranks": refresh.resources.ranks,
        "scheduler": refresh.resources.scheduler,
        "checkpoint_interval_s": refresh.checkpoint.interval_s,
        "optimizations": refresh.optimizations.resolved(),
        "training": refresh.training.model_dump(mode="json"),
        "run": run.run,
        "run_type": str(run.run_type),
        "purpose": str(run.purpose),
        "window": f"{run.window.start} to {run.window.end} (exclusive)",
        "warm_start": run.warm_start.run if run.warm_start else "none",
        "params": run.params,
    }
