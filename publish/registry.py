"""The registry: immutable versions of a refresh's model, and which of them is live.

`python -m publish.registry list|live REFRESH`
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from publish.errors import RegistryError, SnapshotError
from trainer.atomic_file import sync
from trainer.run_folder import registry_root

if TYPE_CHECKING:
    from publish.snapshot import SnapshotManifest

RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LiveRecord:
    """One move of the live pointer. The record with the highest number says which version is live."""

    number: int
    snapshot: str
    window: tuple[str, str]
    created_unix_ns: int
    version: int = RECORD_VERSION


class LiveOutcome(StrEnum):
    """What became of a version that asked to be live."""

    MOVED = "moved"
    ALREADY = "already_live"
    OLDER_WINDOW = "older_window"  # a later day is live: retraining an old day does not take its place
    SUPERSEDED = "superseded"  # was live before; the pointer never moves back by itself
    WITHHELD = "withheld"  # a tuning run that was not to go live


@dataclass(frozen=True)
class Registry:
    """`REGISTRY/<refresh>`: `versions/<version>/` and `live/<number>.json`."""

    root: Path

    @classmethod
    def of(cls, refresh: str) -> Registry:
        return cls(registry_root() / refresh)

    def path(self, version: str) -> Path:
        return self.root / "versions" / version

    def versions(self) -> list[SnapshotManifest]:
        """Every registered version, by window and then by age. A damaged one is left out; asking for it tells why."""
        from publish.snapshot import SnapshotManifest

        found = []
        for folder in self._version_folders():
            try:
                found.append(SnapshotManifest.read(folder))
            except SnapshotError:
                continue
        return sorted(found, key=lambda manifest: (manifest.lineage.window[::-1], manifest.created_unix_ns))

    def register(self, version: str, make: Callable[[Path], None]) -> Path:
        """Register a version: `make` writes it into an empty folder, which then appears in one rename, or not at all.

        Raises:
            RegistryError: the version exists; versions never change.
        """
        target = self.path(version)
        if target.exists():
            raise RegistryError(f"{target}: exists already; versions never change")
        aside = target.with_name(f".{version}.{secrets.token_hex(4)}.tmp")
        aside.mkdir(parents=True)
        try:
            make(aside)
            sync(aside)
            aside.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return target

    def live(self) -> LiveRecord | None:
        """The newest move of the pointer, None if nothing was ever live.

        Raises:
            RegistryError: a record of another version, or a damaged one.
        """
        records = self.records()
        return records[-1] if records else None

    def records(self) -> list[LiveRecord]:
        """Every move of the live pointer, in order."""
        paths = (self.root / "live").glob("*.json")
        return [_read_record(path) for path in sorted(paths, key=lambda path: _number(path))]

    def go_live(self, version: str, window: tuple[str, str]) -> LiveOutcome:
        """Make a registered version live, unless a later day is, or it has been live and was superseded.

        Two publishers may race: each number is created exclusively, and the loser looks again at what is live now.
        """
        while True:
            records = self.records()
            if records:
                if records[-1].snapshot == version:
                    return LiveOutcome.ALREADY
                if version in {record.snapshot for record in records}:
                    return LiveOutcome.SUPERSEDED
                if window[1] < records[-1].window[1]:
                    return LiveOutcome.OLDER_WINDOW
            number = records[-1].number + 1 if records else 1
            record = LiveRecord(number=number, snapshot=version, window=window, created_unix_ns=time.time_ns())
            if self._create(record):
                return LiveOutcome.MOVED

    def _create(self, record: LiveRecord) -> bool:
        """Whether this call created the record: complete from the first moment, and only if the number was free."""
        folder = self.root / "live"
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".{record.number}.{secrets.token_hex(4)}.tmp"
        with aside.open("x", encoding="utf-8") as stream:
            json.dump(asdict(record), stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(aside, folder / f"{record.number}.json")
        except FileExistsError:
            return False
        except OSError as error:
            raise RegistryError(
                f"{folder}: cannot create a record exclusively ({error}); use a file system that has hard links"
            ) from error
        finally:
            aside.unlink()
        return True

    def _version_folders(self) -> list[Path]:
        folder = self.root / "versions"
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []


def _number(path: Path) -> int:
    try:
        return int(path.stem)
    except ValueError:
        raise RegistryError(f"{path}: is no live record, whose names are numbers; remove it") from None


def _read_record(path: Path) -> LiveRecord:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["version"]
        if version != RECORD_VERSION:
            raise RegistryError(f"{path}: record version {version!r}, this release reads {RECORD_VERSION}; upgrade it")
        return LiveRecord(**{**document, "window": tuple(document["window"])})
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryError(f"{path}: is damaged ({type(error).__name__}: {error}); restore it from a backup") from None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m publish.registry", description="What is registered, what is live.")
    parser.add_argument("what", choices=["list", "live"])
    parser.add_argument("refresh")
    options = parser.parse_args(arguments)
    registry = Registry.of(options.refresh)
    try:
        live = registry.live()
        if options.what == "live":
            if live is None:
                raise RegistryError(f"{registry.root}: nothing is live; run the refresh first")
            print(registry.path(live.snapshot))
            return 0
        _print_versions(registry, live)
    except RegistryError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _print_versions(registry: Registry, live: LiveRecord | None) -> None:
    for manifest in registry.versions():
        start, end = manifest.lineage.window
        quality = f"AUC {manifest.metrics.holdout_auc:.4f}" if manifest.metrics else "not validated"
        origin = manifest.lineage.started_from_run or "scratch"
        mark = "live" if live and live.snapshot == manifest.version else "    "
        print(f"{mark}  {manifest.version}  [{start}, {end})  {quality}  from {origin}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
