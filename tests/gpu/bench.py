"""Where the checks run and at which sizes, and the seconds they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[2]


class Size(Enum):
    FULL = "full"  # what a GPU is asked
    TOY = "toy"  # as small as runs: for the checks' own tests


class NoTimeError(Exception):
    """The seconds of the whole run are used up."""


class ChildError(Exception):
    """A process of a check failed; carries the end of what it said."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """`folder` is for scratch files; `deadline` is of `time.monotonic`."""

    device: torch.device
    size: Size
    folder: Path
    deadline: float

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def require_seconds(self, seconds: float) -> None:
        """
        Raises:
            NoTimeError: fewer than `seconds` are left.
        """
        if self.seconds_left() < seconds:
            raise NoTimeError(f"{max(self.seconds_left(), 0):.0f} s are left of the time for all checks")

    def child(self, module: str, *arguments: str, **environment: str) -> Any:
        """The JSON that `python -m module` prints, in a process of its own with nothing cached but what is named.

        Raises:
            ChildError: it failed, or ran out of the time left.
        """
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                env={**os.environ, "PYTHONPATH": path, **environment},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=max(self.seconds_left(), 1),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{module} {' '.join(arguments)} did not end in the time left") from error
        if done.returncode:
            raise ChildError(f"{module} {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-600:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def fresh(self, name: str) -> dict[str, str]:
        """Cache folders of a process that finds nothing in them."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / name / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / name / "triton"),
        }
