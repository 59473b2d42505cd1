"""A rank whose data source answers late: `python -m late_source` is the trainer with every file opened so much later.

The latency is emulated, here and nowhere in the product, and every table that rests on it says so.
"""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

from trainer.dpp.reader import PartitionReader

VARIABLE = "ETT_BENCH_LATENCY_S"


def delay_opening(seconds: float) -> None:
    """Have every partition file open `seconds` later, on the thread that reads ahead."""
    original: Any = PartitionReader._open

    def late(self: PartitionReader, *args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return original(self, *args, **kwargs)

    PartitionReader._open = late  # type: ignore[method-assign]


if __name__ == "__main__":
    delay_opening(float(os.environ[VARIABLE]))
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
