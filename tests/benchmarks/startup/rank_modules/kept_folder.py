"""A rank that compiles into a folder which stays: `python -m kept_folder` trains on a node with a local cache."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

VARIABLE = "ETT_BENCH_KEPT_FOLDER"


def keep(folder: Path) -> None:
    """Have the attempt compile into `folder`, and leave it there."""
    from trainer.compile.attempt_cache import AttemptCache

    original: Any = AttemptCache.__init__

    def init(self: AttemptCache, **fields: Any) -> None:
        original(self, **{**fields, "folder": folder})

    AttemptCache.__init__ = init  # type: ignore[method-assign]
    AttemptCache.remove = lambda self: None  # type: ignore[method-assign]


if __name__ == "__main__":
    from trainer.attempt import Attempt

    Attempt.from_environment().limit_threads()  # before torch is imported, as the trainer does
    keep(Path(os.environ[VARIABLE]))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
