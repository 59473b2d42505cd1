"""Launch configurations of the kernels: committed ones by device type and shape class, or a search over all.

A search times every configuration at the first launch of every process. The committed table replaces it (paper IV-B,
autotuning with pruned configurations); `python -m trainer.kernels.tune` measures it anew on the GPU that is present.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TUNED_FILE = Path(__file__).with_name("tuned.json")
FORMAT = 1
ANY_DEVICE = "*"


class ConfigSource(StrEnum):
    """Where a kernel's launch configuration comes from."""

    COMMITTED = "committed"  # the table: no search
    SEARCHED = "searched"  # Triton times the whole search space at the first launch


class Kernel(StrEnum):
    """The kernels that have configurations."""

    INTERACTION_FORWARD = "interaction_forward"
    INTERACTION_BACKWARD = "interaction_backward"


class TunedFileError(Exception):
    """The table of configurations cannot be used; names the file, the entry and what is wrong."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}; write it anew with `python -m trainer.kernels.tune`, on a GPU")


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """`block_width` columns of the embedding at a time, `rows` rows of the batch per program, and Triton's own two."""

    block_width: int
    rows: int
    warps: int
    stages: int

    def text(self) -> str:
        """
        >>> LaunchConfig(block_width=32, rows=1, warps=4, stages=2).text()
        '32,1,4,2'
        """
        return f"{self.block_width},{self.rows},{self.warps},{self.stages}"

    @classmethod
    def parse(cls, text: str) -> LaunchConfig:
        """The configuration whose `text` this is."""
        block_width, rows, warps, stages = (int(number) for number in text.split(","))
        return cls(block_width=block_width, rows=rows, warps=warps, stages=stages)


@dataclass(frozen=True, kw_only=True)
class ShapeClass:
    """Shapes that share a configuration: `nodes` (features and the dense row) and `width` as powers of two."""

    nodes: int
    width: int
    dtype: str

    @classmethod
    def of(cls, *, sparse_features: int, width: int, dtype: str) -> ShapeClass:
        """
        >>> ShapeClass.of(sparse_features=26, width=100, dtype="float32")
        ShapeClass(nodes=32, width=128, dtype='float32')
        """
        return cls(nodes=_power_of_two(sparse_features + 1), width=_power_of_two(width), dtype=dtype)

    def distance(self, other: ShapeClass) -> int:
        """Doublings between the two."""
        return abs(self.nodes.bit_length() - other.nodes.bit_length()) + abs(
            self.width.bit_length() - other.width.bit_length()
        )


@dataclass(frozen=True, kw_only=True)
class TunedEntry:
    """One row of the table; `origin` says where it comes from, `microseconds` is None where nobody timed it."""

    kernel: Kernel
    device: str
    shape: ShapeClass
    config: LaunchConfig
    origin: str
    microseconds: float | None


@dataclass(frozen=True)
class TunedTable:
    """The committed configurations."""

    entries: tuple[TunedEntry, ...]

    @classmethod
    def read(cls, path: Path) -> TunedTable:
        """
        Raises:
            TunedFileError: missing, not JSON, another format, or an entry that lacks a field or has a wrong one.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TunedFileError(path, f"unreadable ({error})") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise TunedFileError(path, f"not of format {FORMAT}")
        return cls(tuple(_entries(path, document.get("entries"))))

    def text(self) -> str:
        """The file's content: one entry a line, in an order that does not depend on who measured first."""
        order = sorted(self.entries, key=lambda e: (e.kernel, e.device, e.shape.dtype, e.shape.nodes, e.shape.width))
        lines = ",\n".join("  " + json.dumps(_flat(entry)) for entry in order)
        return f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n'

    def with_measured(self, measured: Iterable[TunedEntry]) -> TunedTable:
        """This table with `measured` in the place of entries for the same kernel, device and shape class."""
        by_place = {(entry.kernel, entry.device, entry.shape): entry for entry in (*self.entries, *measured)}
        return TunedTable(tuple(by_place.values()))

    def find(self, kernel: Kernel, device: str, shape: ShapeClass) -> TunedEntry | None:
        """The entry of this device type and shape class, or the nearest: any device before another shape class.

        None if nothing was ever written for the kernel and dtype.
        """
        usable = [
            entry
            for entry in self.entries
            if entry.kernel is kernel and entry.shape.dtype == shape.dtype and entry.device in (device, ANY_DEVICE)
        ]
        return min(usable, key=lambda e: (e.shape.distance(shape), e.device != device, e.shape.width), default=None)


def committed_config(kernel: Kernel, device: str, shape: ShapeClass) -> LaunchConfig:
    """The committed configuration for `shape` on `device` (torch's name of it), or the nearest, with a line in the log.

    Raises:
        TunedFileError: the committed file is broken.
    """
    return _committed(kernel, device, shape)


def search_space(shape: ShapeClass) -> list[LaunchConfig]:
    """Every configuration worth timing for `shape`: none wider than the embedding, none that cannot fill its warps."""
    blocks = [block for block in (16, 32, 64, 128) if min(32, shape.width) <= block <= shape.width]
    space = product(blocks, (1, 2, 4), (1, 2, 4, 8), (1, 2))
    configs = (LaunchConfig(block_width=b, rows=r, warps=w, stages=s) for b, r, w, s in space)
    return [config for config in configs if _sensible(config, shape)]


def use_configs(source: ConfigSource) -> None:
    """Launch the kernels with configurations of `source` from now on; call it before the first compilation."""
    global _source
    _source = source


def config_source() -> ConfigSource:
    """Where configurations come from at present."""
    return _source


_source = ConfigSource.COMMITTED

_UNTUNED = LaunchConfig(block_width=32, rows=1, warps=4, stages=2)


@functools.cache  # also says it once, not at every launch
def _committed(kernel: Kernel, device: str, shape: ShapeClass) -> LaunchConfig:
    entry = _table().find(kernel, device, shape)
    if entry is None:
        log.warning("no configuration of %s for %s; taking %s", kernel, shape, _UNTUNED)
        return _narrowed(_UNTUNED, shape)
    if (entry.device, entry.shape) != (device, shape):
        log.info(
            "%s was not tuned for %s on %s; taking what is there for %s on %s (%s). "
            "`python -m trainer.kernels.tune` measures it",
            kernel,
            shape,
            device,
            entry.shape,
            "any device" if entry.device == ANY_DEVICE else entry.device,
            entry.origin,
        )
    return _narrowed(entry.config, shape)


def _narrowed(config: LaunchConfig, shape: ShapeClass) -> LaunchConfig:
    """No columns beyond the embedding's."""
    return replace(config, block_width=min(config.block_width, shape.width))


@functools.cache
def _table() -> TunedTable:
    return TunedTable.read(TUNED_FILE)


def _sensible(config: LaunchConfig, shape: ShapeClass) -> bool:
    """A warp needs products to compute, and a thread cannot hold more than 128 of the square in registers."""
    products_per_thread = shape.nodes * shape.nodes / (32 * config.warps)
    pipelined = shape.width > config.block_width or config.rows > 1
    return 2 <= products_per_thread <= 128 and (pipelined or config.stages == 1)


def _power_of_two(size: int) -> int:
    """At least 16, the least that a matrix product of Triton takes."""
    return max(16, 1 << (size - 1).bit_length())


def _flat(entry: TunedEntry) -> dict[str, Any]:
    return {
        "kernel": entry.kernel.value,
        "device": entry.device,
        **asdict(entry.shape),
        **asdict(entry.config),
        "origin": entry.origin,
        "microseconds": entry.microseconds,
    }


def _entries(path: Path, rows: Any) -> Iterator[TunedEntry]:
    if not isinstance(rows, list):
        raise TunedFileError(path, "entries is not a list")
    for number, row in enumerate(rows):
        try:
            yield _entry(row)
        except (KeyError, TypeError, ValueError) as error:
            raise TunedFileError(path, f"entry {number}: {error!r}") from error


def _entry(row: dict[str, Any]) -> TunedEntry:
    config = LaunchConfig(**{field.name: _positive(row, field.name) for field in fields(LaunchConfig)})
    return TunedEntry(
        kernel=Kernel(row["kernel"]),
        device=str(row["device"]),
        shape=ShapeClass(nodes=_positive(row, "nodes"), width=_positive(row, "width"), dtype=str(row["dtype"])),
        config=config,
        origin=str(row["origin"]),
        microseconds=None if row["microseconds"] is None else float(row["microseconds"]),
    )


def _positive(row: dict[str, Any], name: str) -> int:
    value = row[name]
    if type(value) is not int or value <= 0 or (value & (value - 1) and name != "stages"):
        raise ValueError(f"{name} is {value!r}, not a power of two")
    return value
