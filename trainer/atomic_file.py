"""Files that are either wholly there or not at all, also after a crash, a full disk or a power cut."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write the path that this yields; it takes `path`'s place once the block has ended without an error.

    A reader sees the old file or the new one. When the block fails, the old one stays and nothing is left beside it.

    Raises:
        OSError: disk full, no permission, ...
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        yield aside
        sync(aside)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync(path.parent)  # a rename alone may be lost in a power cut


def replace_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Make `text` the content of `path` in one step; `mode` is the new file's permissions, narrowed by the umask.

    Raises:
        OSError: as `replacing`.
    """
    with replacing(path) as aside:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
