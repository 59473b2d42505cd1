"""Publishing one run: anchor -> snapshot -> validation -> registry (paper IV-D). Safe to repeat after any crash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from publish.errors import ForeignAnchorError, NoAnchorError, RegistryError
from publish.registry import LiveOutcome, Registry
from publish.snapshot import Anchor, Metrics, SnapshotManifest, verify_snapshot, write_snapshot
from publish.validation import validate
from trainer.checkpoint import CheckpointError, CheckpointKind, CheckpointRef, Lineage, Manifest, load_unsharded
from trainer.dpp.plan import ReadPlan
from trainer.model.factory import build_model
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec, load_run_spec
from trainer.storage import CheckpointPlace


@dataclass(frozen=True, kw_only=True)
class Published:
    """What publishing did. `live_unix_ns` is when the version went live, None if it is not the live one."""

    version: str
    path: Path
    metrics: Metrics
    outcome: LiveOutcome
    live_unix_ns: int | None


def publish(run_folder: RunFolder) -> Published:
    """Publish the run's anchor as version `<run>`, and make it live unless a later day is, or the run is a trial.

    A retry after registering verifies what is registered, against the same anchor and the same holdout.

    Raises:
        PublishError: refused; nothing is half registered, and the live pointer has not moved.
        CheckpointError, DppError: the anchor, or the holdout, cannot be read.
    """
    spec = load_run_spec(run_folder.spec_path)
    plan = ReadPlan.load(run_folder.plan_path)
    place = CheckpointPlace.of(run_folder, spec.refresh)
    anchor = _anchor(place, spec)
    registry, version = Registry.of(spec.refresh.name), spec.run.run
    if registry.path(version).exists():
        _check_same_anchor(registry.path(version), anchor)
        validate(registry.path(version), plan, place.anchor)
    else:
        registry.register(version, lambda aside: _make(aside, spec, anchor, plan, place))
    registered = verify_snapshot(registry.path(version))
    if registered.metrics is None:
        raise RegistryError(f"{registry.path(version)}: registered without validation; remove it and publish again")
    live = spec.run.publish_live
    outcome = registry.go_live(version, registered.lineage.window) if live else LiveOutcome.WITHHELD
    return Published(
        version=version,
        path=registry.path(version),
        metrics=registered.metrics,
        outcome=outcome,
        live_unix_ns=_live_since(registry, version),
    )


def _anchor(place: CheckpointPlace, spec: RunSpec) -> Manifest:
    """The anchor's manifest, if the anchor is durable and this very run wrote it."""
    try:
        anchor = CheckpointRef.open(place.anchor).manifest()
    except CheckpointError as error:
        raise NoAnchorError(place.anchor, str(error)) from error
    if anchor.kind is not CheckpointKind.ANCHOR:
        raise NoAnchorError(place.anchor, f"it is a {anchor.kind} checkpoint")
    ours = Lineage.of(spec)
    for what in ("refresh", "run", "window", "spec_digest"):
        theirs, expected = getattr(anchor.lineage, what), getattr(ours, what)
        if theirs != expected:
            raise ForeignAnchorError(place.anchor, what=what, anchor=str(theirs), run_folder=str(expected))
    return anchor


def _make(aside: Path, spec: RunSpec, anchor: Manifest, plan: ReadPlan, place: CheckpointPlace) -> None:
    """Write the snapshot, open it again from the disk, validate it, and only then say so in its manifest."""
    module = build_model(spec.refresh, device="cpu")
    load_unsharded(place.anchor, module)
    progress = anchor.progress
    write_snapshot(
        aside,
        module.eval(),
        version=spec.run.run,
        lineage=anchor.lineage,
        anchor=Anchor(path=str(place.anchor), save_id=anchor.save_id, step=progress.step, cursor=progress.cursor),
        spec=spec.refresh,
    )
    metrics = validate(aside, plan, place.anchor)
    replace(SnapshotManifest.read(aside), metrics=metrics).write(aside)


def _check_same_anchor(path: Path, anchor: Manifest) -> None:
    registered = SnapshotManifest.read(path).anchor.save_id
    if registered != anchor.save_id:
        raise RegistryError(
            f"{path}: was published from another anchor of this run (save {registered}, now {anchor.save_id}); "
            "versions never change, so refresh under a new run"
        )


def _live_since(registry: Registry, version: str) -> int | None:
    live = registry.live()
    return live.created_unix_ns if live and live.snapshot == version else None
