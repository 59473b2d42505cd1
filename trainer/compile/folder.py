"""The folder on this node that Inductor compiles into."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def use_folder(folder: Path) -> None:
    """Have this process compile into `folder`; call it before the first compilation."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ[FOLDER_VARIABLE] = str(folder)


def empty(folder: Path) -> None:
    """Remove `folder` and what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
