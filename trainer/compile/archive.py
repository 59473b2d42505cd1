"""Compiled code kept for the whole refresh: one archive per key, with the Mega-Cache and, on CPU, Inductor's folder.

On CPU PyTorch's Mega-Cache holds graphs and source but not the built kernels, so the folder has to travel too.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.compile.folder import empty, use_folder
from trainer.compile.graph_keys import GraphKey
from trainer.compile.key import ARCHIVE_FORMAT, CompileKey
from trainer.compile.mega_cache import MegaCacheError, load
from trainer.compile.place import ArchivePlace
from trainer.compile.trust import UntrustedFileError
from trainer.storage import StoragePath

log = logging.getLogger(__name__)

_DESCRIPTION = "archive.json"
_MEGA_CACHE = "mega-cache"
_FOLDER = "folder"


class ArchiveContentError(Exception):
    """An archive that is proved, and still cannot be used: of another format or key, or incomplete."""


@dataclass(frozen=True, kw_only=True)
class CacheLookup:
    """What the archive had for a key.

    Attributes:
        changed: on a miss, the parts of the key that differ from the last archive's.
        refused: on a miss, why an archive that was there is not used; else empty.
        graphs: the compiler's keys of the graphs in the archive, on a miss in the last one.
        read_bytes: size of the archive.
    """

    hit: bool
    key: str
    changed: list[str]
    refused: str = ""
    graphs: Sequence[GraphKey] = ()
    read_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What one attempt has compiled. `folder` is left out where the Mega-Cache holds everything."""

    folder: Path | None
    mega_cache: bytes | None = None
    graphs: Sequence[GraphKey] = ()


@dataclass(frozen=True)
class CompileArchive:
    """Archives of compiled code in a folder that all runs of a refresh share."""

    folder: StoragePath
    place: ArchivePlace = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", ArchivePlace(self.folder))

    def unpack(self, key: CompileKey, into: Path) -> CacheLookup:
        """Fill `into`, which must be the folder that this process compiles into, with what was compiled under `key`.

        Whatever is wrong with an archive is a miss, with the reason logged and nothing left in `into`.
        """
        name = archive_name(key)
        try:
            body = self.place.proved(name)
            graphs = _unpack(key, body, into)
            return CacheLookup(hit=True, key=key.digest, changed=[], graphs=graphs, read_bytes=len(body))
        except FileNotFoundError:
            refused = ""
        except UntrustedFileError as error:
            refused = error.why
        except (OSError, tarfile.TarError, EOFError, ArchiveContentError, MegaCacheError) as error:
            refused = str(error)
        if refused:
            log.warning("compiled code in %s is not used (%s); compiling anew", self.folder / name, refused)
            empty(into)
            with contextlib.suppress(OSError):  # torch makes it itself when it has something to write
                use_folder(into)
        changed, last = self._difference(key)
        return CacheLookup(hit=False, key=key.digest, changed=changed, refused=refused, graphs=last)

    def publish(self, key: CompileKey, compiled: Compiled) -> int:
        """Keep `compiled` for later attempts, in one atomic step. Returns the archive's bytes, 0 if it was not kept."""
        name = archive_name(key)
        if self.place.closed_because:
            return 0
        try:
            size = self.place.keep(name, _packed(key, compiled))
            self.place.write_note(_note_name(key), _description(key, compiled))
            return size
        except OSError as error:
            log.warning("compiled code is not kept in %s: %s", self.folder / name, error)
            return 0

    def _difference(self, key: CompileKey) -> tuple[list[str], Sequence[GraphKey]]:
        """How `key` differs from the newest archive's, and that one's graphs; nothing when there is none yet."""
        for name in self.place.notes("inductor-"):
            try:
                described, graphs = _described(self.place.note(name))
            except ArchiveContentError:
                continue
            if described.digest != key.digest:
                return key.changed_from(described), graphs
        return [], ()


def archive_name(key: CompileKey) -> str:
    return f"inductor-{key.digest}.tar"


def _note_name(key: CompileKey) -> str:
    return f"inductor-{key.digest}.json"


def _description(key: CompileKey, compiled: Compiled) -> dict[str, Any]:
    graphs = [graph.to_json() for graph in compiled.graphs]
    return {"format": ARCHIVE_FORMAT, "key": key.parts, "graphs": graphs}


def _described(document: Any) -> tuple[CompileKey, list[GraphKey]]:
    """Raises ArchiveContentError."""
    try:
        if document["format"] != ARCHIVE_FORMAT:
            raise ArchiveContentError(f"it is of format {document['format']}; this release knows {ARCHIVE_FORMAT}")
        parts = {str(name): str(part) for name, part in document["key"].items()}
        return CompileKey(parts), [GraphKey.from_json(graph) for graph in document["graphs"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArchiveContentError(f"its description cannot be read ({error!r})") from error


def _packed(key: CompileKey, compiled: Compiled) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        _add(archive, _DESCRIPTION, json.dumps(_description(key, compiled)).encode())
        if compiled.mega_cache is not None:
            _add(archive, _MEGA_CACHE, compiled.mega_cache)
        if compiled.folder is not None:
            archive.add(compiled.folder, arcname=_FOLDER, filter=_settled)
    return stream.getvalue()


def _unpack(key: CompileKey, body: bytes, into: Path) -> list[GraphKey]:
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        described, graphs = _described(json.loads(_content(archive, _DESCRIPTION) or b"{}"))
        if described.digest != key.digest:
            differing = ", ".join(key.changed_from(described))
            raise ArchiveContentError(f"it is named after this key and holds another's ({differing} differ)")
        archive.extractall(into, members=_inside(archive), filter="data")
        artifacts = _content(archive, _MEGA_CACHE)
    if artifacts is not None:
        load(artifacts)
    return graphs


def _inside(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The entries of the folder, by their names below it."""
    for entry in archive:
        if entry.name.startswith(f"{_FOLDER}/"):
            yield entry.replace(name=entry.name.removeprefix(f"{_FOLDER}/"), deep=False)


def _content(archive: tarfile.TarFile, name: str) -> bytes | None:
    try:
        stream = archive.extractfile(name)
    except KeyError:
        return None
    return stream.read() if stream else None


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))


def _settled(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Plain files and folders alone, and of those no locks and nothing that a process is still writing."""
    name = Path(entry.name).name
    if name.endswith((".lock", ".tmp")) or "/locks/" in f"{entry.name}/":
        return None
    return entry if entry.isfile() or entry.isdir() else None
