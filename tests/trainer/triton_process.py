"""Runs a script in a process that has Triton, which the CPU environment leaves out: `make test-triton` fetches it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def triton_folder() -> str | None:
    """The folder to put on the path; empty if Triton is installed, None if it is nowhere."""
    if importlib.util.find_spec("triton"):
        return ""
    return os.environ.get("ETT_TRITON")


def run_with_triton(script: str, *arguments: str, cache: Path, **environment: str) -> Any:
    """What `script` of this folder printed, as JSON; skips the test where there is no Triton."""
    folder = triton_folder()
    if folder is None:
        pytest.skip(
            "Triton is not installed and ETT_TRITON names no folder that has it; `make test-triton` sees to both"
        )
    paths = [str(REPOSITORY), str(REPOSITORY / "plugins"), *([folder] if folder else [])]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
