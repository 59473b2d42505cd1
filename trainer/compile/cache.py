"""Compiled code kept for the whole refresh: Inductor's cache folder as one archive per key.

On CPU PyTorch's Mega-Cache holds graphs and source but not the built kernels, so the archive carries the folder itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch._dynamo.utils

from trainer.atomic_file import replace_text, replacing
from trainer.spec import RefreshSpec, Technique

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_FORMAT = 1


@dataclass(frozen=True)
class CompileKey:
    """What compiled code depends on, as named parts, so that a miss can say which of them changed.

    It chooses an archive, no more: Inductor checks every graph against its own key, so code that changed behind an
    unchanged spec (a user's factory) is compiled anew.
    """

    parts: dict[str, str]

    @classmethod
    def of(cls, spec: RefreshSpec, *, device: str) -> CompileKey:
        model = spec.model.model_dump(mode="json")
        inputs = {"dense": len(spec.contract.dense), "sparse": len(spec.contract.sparse)}
        return cls(
            {
                "format": str(_FORMAT),
                "model": json.dumps(model, sort_keys=True),
                "inputs": json.dumps(inputs, sort_keys=True),
                "batch_size": str(spec.training.batch_size),
                "dynamic_shapes": str(spec.optimizations.enabled(Technique.DYNAMIC_SHAPES)),
                "torch": torch.__version__,
                "torchrec": importlib.metadata.version("torchrec"),
                "python": platform.python_version(),
                "device": device,
                "host_type": _host_type(device),
            }
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True).encode()).hexdigest()[:20]

    def changed_from(self, other: CompileKey) -> list[str]:
        """The parts that differ."""
        names = self.parts.keys() | other.parts.keys()
        return sorted(name for name in names if self.parts.get(name) != other.parts.get(name))


@dataclass(frozen=True, kw_only=True)
class CacheLookup:
    """What the archive had for a key; `changed` are the parts of a missed key that differ from the last archive's."""

    hit: bool
    key: str
    changed: list[str]


@dataclass(frozen=True)
class CompileArchive:
    """Archives of compiled code in a folder that all runs of a refresh share."""

    folder: Path

    def unpack(self, key: CompileKey, into: Path) -> CacheLookup:
        """Fill `into` with what an earlier attempt or run compiled under `key`."""
        path = self._archive(key)
        try:
            with tarfile.open(path) as archive:
                archive.extractall(into, filter="data")
            return CacheLookup(hit=True, key=key.digest, changed=[])
        except FileNotFoundError:
            return CacheLookup(hit=False, key=key.digest, changed=self._difference(key))
        except (OSError, tarfile.TarError, EOFError) as error:
            log.warning("compile cache %s cannot be used (%s); compiling anew and replacing it", path, error)
            empty(into)
            return CacheLookup(hit=False, key=key.digest, changed=["archive unreadable"])

    def publish(self, key: CompileKey, compiled: Path) -> int:
        """Keep `compiled` for later attempts, in one atomic step. Returns the archive's bytes, 0 if it was not kept."""
        path = self._archive(key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as aside, tarfile.open(aside, "w") as archive:
                archive.add(compiled, arcname=".", filter=_settled)
            replace_text(self._description(key), json.dumps(key.parts, indent=1, sort_keys=True))
            return path.stat().st_size
        except OSError as error:
            log.warning("compile cache not kept in %s: %s", path, error)
            return 0

    def _archive(self, key: CompileKey) -> Path:
        return self.folder / f"inductor-{key.digest}.tar"

    def _description(self, key: CompileKey) -> Path:
        return self.folder / f"inductor-{key.digest}.json"

    def _difference(self, key: CompileKey) -> list[str]:
        """The parts in which `key` differs from the newest archive's key; empty when there is none yet."""
        described = sorted(self.folder.glob("inductor-*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in reversed(described):
            try:
                return key.changed_from(CompileKey(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, AttributeError):
                continue
        return []


@dataclass(frozen=True, kw_only=True)
class GraphCacheUse:
    """How many graphs of this process Inductor took from its cache, and how many it compiled."""

    hits: int
    misses: int

    @classmethod
    def so_far(cls) -> GraphCacheUse:
        counts = torch._dynamo.utils.counters["inductor"]
        return cls(hits=counts["fxgraph_cache_hit"], misses=counts["fxgraph_cache_miss"])


def use_folder(folder: Path) -> None:
    """Have this process compile into `folder`; call it before the first compilation."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ[FOLDER_VARIABLE] = str(folder)


def empty(folder: Path) -> None:
    """Remove `folder` and what is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def _settled(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out locks and files that a process is still writing."""
    name = Path(entry.name).name
    return None if name.endswith((".lock", ".tmp")) or "/locks/" in f"/{entry.name}/" else entry


def _host_type(device: str) -> str:
    """Hosts of one type run each other's compiled code."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
