"""Restore: verify, compare with the model, then load; over any number of ranks and any sharding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ett_reports.events import Point
from ett_reports.recorder import Recorder
from trainer.checkpoint.durable import check_content, check_size
from trainer.checkpoint.errors import (
    CheckpointError,
    OtherVersionError,
    PeerFailedError,
    PeerRefusedError,
    StateMismatchError,
)
from trainer.checkpoint.manifest import CheckpointRef, Manifest
from trainer.checkpoint.optimizer_state import materialize
from trainer.checkpoint.peers import Peers
from trainer.checkpoint.progress import Progress
from trainer.checkpoint.retention import committed_folders
from trainer.checkpoint.staging import State
from trainer.checkpoint.unpickling import RestrictedPlanner, RestrictedReader
from trainer.storage import CheckpointPlace, StoragePath

log = logging.getLogger(__name__)

Result = TypeVar("Result")

MODEL = "model"
"""The state's name for the model: what publishing loads."""


@dataclass(frozen=True)
class Restored:
    """The checkpoint that was taken, and the job's progress at it (see `Progress`).

    `rejected` names the folders of newer checkpoints that were damaged.
    """

    ref: CheckpointRef
    manifest: Manifest
    rejected: tuple[str, ...] = ()

    @property
    def progress(self) -> Progress:
        return self.manifest.progress


def restore_newest(
    place: CheckpointPlace, state: State, *, recorder: Recorder, process_group: dist.ProcessGroup | None = None
) -> Restored | None:
    """Load the run's newest intact checkpoint into `state`, the same on every rank; None if there is none.

    A checkpoint that is torn or changed is told (point `checkpoint_rejected`, and in the log) and the one before it is
    tried; the loss shows as recovery (case C2).

    Raises:
        OtherVersionError: the newest was written by another release; nothing older is silently taken instead.
        StateMismatchError: it belongs to another model.
        OSError, PeerFailedError: the storage cannot be reached, which says nothing about the checkpoints.
    """
    peers = Peers.of(process_group)
    rejected: list[str] = []
    for folder in _agreed_folders(place.checkpoints, peers):
        try:
            manifest = _verified_by_all(folder, peers)
        except (OtherVersionError, PeerFailedError):
            raise
        except CheckpointError as error:
            log.warning("checkpoint %s is rejected: %s", folder.name, error)
            recorder.point("checkpoint_rejected", checkpoint=folder.name, message=str(error)[:2000])
            rejected.append(folder.name)
            continue
        _load_on_all(folder, state, manifest, peers)
        progress = manifest.progress
        recorder.point(Point.RESTORED, cursor=progress.cursor, step=progress.step, checkpoint=folder.name)
        return Restored(CheckpointRef(folder, progress.step, progress.cursor), manifest, tuple(rejected))
    return None


def restore(ref: CheckpointRef, state: State, *, process_group: dist.ProcessGroup | None = None) -> Progress:
    """Load one checkpoint or anchor into `state`; call it on every rank.

    Raises:
        CheckpointError: it is damaged, of another version, hostile, or of another model; on every rank alike.
        OSError, PeerFailedError: the storage cannot be reached.
    """
    peers = Peers.of(process_group)
    manifest = _verified_by_all(ref.path, peers)
    _load_on_all(ref.path, state, manifest, peers)
    return manifest.progress


def verify(ref: CheckpointRef) -> Manifest:
    """Check the size and the SHA-256 of every file. Nothing is unpickled.

    Raises:
        CheckpointError: the first file that is not as it was written.
    """
    manifest = Manifest.read(ref.path)
    for name, record in manifest.files.items():
        check_content(ref.path / name, record)
    return manifest


def load_unsharded(anchor: StoragePath, module: nn.Module) -> Manifest:
    """Load the model of a checkpoint, however it was sharded, into an unsharded CPU module. No process group is needed.

    Raises:
        CheckpointError: as `restore`; every parameter and buffer of the module must be in the checkpoint, and no other.
    """
    manifest = verify(CheckpointRef.open(anchor))
    model = {MODEL: module.state_dict()}
    flat, _ = flatten_state_dict(model)
    _check_same(anchor, flat, set(flat), _only(manifest, MODEL))
    _load(anchor, model, manifest)
    return manifest


def _agreed_folders(checkpoints: StoragePath, peers: Peers) -> list[StoragePath]:
    """Rank 0's listing: two ranks that list by themselves may see different moments of a network file system."""
    names: list[str] = []

    def list_them() -> None:
        if peers.rank == 0:
            names.extend(folder.name for folder in committed_folders(checkpoints))

    _together(checkpoints, list_them, peers)
    return [checkpoints / name for name in peers.from_first(names)]


def _verified_by_all(folder: StoragePath, peers: Peers) -> Manifest:
    """Every rank checks all sizes and hashes its share of the files: the whole is read once, not once a rank."""

    def check() -> Manifest:
        manifest = Manifest.read(folder)
        for number, (name, record) in enumerate(sorted(manifest.files.items())):
            check_size(folder / name, record)
            if number % peers.world_size == peers.rank:
                check_content(folder / name, record)
        return manifest

    return _together(folder, check, peers)


def _load_on_all(folder: StoragePath, state: State, manifest: Manifest, peers: Peers) -> None:
    nested = _together(folder, lambda: _nested(state), peers)
    flat, _ = flatten_state_dict(nested)
    # A rank without a shard of a table may not have its optimizer state at all: what one rank has, the job has.
    names = set().union(*peers.of_all(set(flat)))

    def load() -> None:
        _check_same(folder, flat, names, manifest)
        _load(folder, nested, manifest)
        for name, element in state.items():
            if hasattr(element, "load_state_dict"):
                element.load_state_dict(nested[name])

    _together(folder, load, peers)


def _nested(state: State) -> dict[str, Any]:
    for element in state.values():
        if isinstance(element, torch.optim.Optimizer):
            materialize(element)
    return {
        name: element.state_dict() if hasattr(element, "state_dict") else element for name, element in state.items()
    }


def _load(folder: StoragePath, nested: dict[str, Any], manifest: Manifest) -> None:
    """DCP's load without its collectives: a rank reads what it holds from wherever it lies, and needs no other rank."""
    reader, planner = RestrictedReader(folder, manifest), RestrictedPlanner(folder)
    metadata = reader.read_metadata()
    planner.set_up_planner(nested, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def _check_same(folder: StoragePath, flat: Mapping[str, Any], names: set[str], manifest: Manifest) -> None:
    """Compare what this rank has (`flat`) and what the job has (`names`) with what was saved."""
    saved = manifest.tensors.keys() | set(manifest.values)
    reshaped = [
        f"{name} ({record.dtype}{list(record.shape)} saved, {_described(flat[name])} in the model)"
        for name, record in manifest.tensors.items()
        if name in flat and _described(flat[name]) != f"{record.dtype}{list(record.shape)}"
    ]
    missing, unknown = sorted(names - saved), sorted(saved - names)
    if missing or unknown or reshaped:
        raise StateMismatchError(folder, missing=missing, unknown=unknown, reshaped=reshaped)


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor) and not hasattr(value, "local_shards"):
        return "no tensor"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.size())}"


def _only(manifest: Manifest, part: str) -> Manifest:
    """The manifest as if it held one part of the state."""
    prefix = f"{part}."

    def chosen(names: Iterable[str]) -> list[str]:
        return [name for name in names if name.startswith(prefix)]

    return replace(
        manifest,
        tensors={name: manifest.tensors[name] for name in chosen(manifest.tensors)},
        values=tuple(chosen(manifest.values)),
    )


class _Verdict(IntEnum):
    """What one rank found; the worst counts for all."""

    FINE = 0
    REFUSED = 1  # the checkpoint is at fault: another may do
    STOPPED = 2  # it is not, or none other may be taken instead


def _together(folder: StoragePath, action: Callable[[], Result], peers: Peers) -> Result:
    """Do it on every rank; where one fails, all do, so that none waits for ever in the next collective."""
    failure, verdict = None, _Verdict.FINE
    try:
        result = action()
    except Exception as error:
        failure = error
        other_may_do = isinstance(error, CheckpointError) and not isinstance(error, OtherVersionError)
        verdict = _Verdict.REFUSED if other_may_do else _Verdict.STOPPED
    told = peers.of_all((verdict, f"{type(failure).__name__}: {failure}"))
    worst = max(each for each, _ in told)
    if failure is not None and verdict is worst:
        raise failure
    if worst is not _Verdict.FINE:
        rank, message = next((rank, message) for rank, (each, message) in enumerate(told) if each == worst)
        refusal = PeerRefusedError if worst is _Verdict.REFUSED else PeerFailedError
        raise refusal(folder, rank=rank, message=message) from failure
    return result
