"""Removes what has expired: out of sight first, so that nobody ever sees half of a thing."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ett_airflow.housekeeping_facts import TRASH, Expired, Kind
from trainer.storage import MANIFEST_NAME, StoragePath, names_in, remove_file, remove_folder

log = logging.getLogger(__name__)

Objection = Callable[[Expired], str]
"""Why a thing must not go after all, asked right before; empty to let it go."""


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What became of a plan. `spared` and `failures` are messages that name the path."""

    items: Sequence[Expired] = ()
    spared: Sequence[str] = ()
    failures: Sequence[str] = ()

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


def remove(expired: Sequence[Expired], objection: Objection) -> Removed:
    """Remove one after the other; what cannot be removed is told and does not keep the others from going."""
    gone, spared, failures = [], [], []
    for item in expired:
        try:
            reason = objection(item)
            if reason:
                spared.append(f"{item.path}: {reason}")
                continue
            for path in (item.path, *item.beside):
                _remove(path, item)
        except Exception as error:
            log.warning("%s %s could not be removed: %s", item.kind, item.path, error)
            failures.append(f"{item.path}: {type(error).__name__}: {error}")
            continue
        gone.append(item)
    return Removed(items=gone, spared=spared, failures=failures)


def _remove(path: StoragePath, item: Expired) -> None:
    if isinstance(path, Path):
        _remove_local(path, item.trash)
    elif item.kind is Kind.CHECKPOINTS:
        for name in names_in(path):
            _remove_save(path / name)
        remove_folder(path)
    else:
        _remove_save(path)


def _remove_local(path: Path, trash: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if path.parent.name == TRASH:
        doomed = path
    else:
        trash.mkdir(mode=0o700, exist_ok=True)
        doomed = trash / f"{path.name}-{secrets.token_hex(4)}"
        path.rename(doomed)
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def _remove_save(folder: StoragePath) -> None:
    """An object store moves nothing: without its manifest a save is none."""
    remove_file(folder / MANIFEST_NAME)
    remove_folder(folder)
