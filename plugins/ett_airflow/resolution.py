"""Turns an Airflow run into a run folder with its resolved spec, once: later tries and clears find it decided."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from ett_airflow.anchors import Anchor, completed_anchors
from ett_airflow.descendants import why_stale
from ett_airflow.generation import RunIdentity, trained_before
from ett_airflow.parameters import (
    DAYS,
    WARM_START,
    WINDOW_END,
    WINDOW_START,
    chosen,
    day_of,
    goes_live,
    overrides_of,
    purpose_of,
)
from ett_airflow.partitions import closed_days, landed_days
from ett_airflow.window import ONE_DAY, Decision, Warm, WindowRequest, decide
from trainer.run_folder import RunFolder, data_root
from trainer.spec import RefreshSpec, RunInfo, RunSpec, RunType, dump_run_spec, load_run_spec, with_overrides

log = logging.getLogger(__name__)

_RUN_TYPES = {
    "scheduled": RunType.SCHEDULED,
    "backfill": RunType.BACKFILL,
    "manual": RunType.MANUAL,
    "operator_triggered": RunType.MANUAL,
    "asset_triggered": RunType.ASSET,
    "asset_materialization": RunType.ASSET,
}


@dataclass(frozen=True, kw_only=True)
class AirflowRun:
    """What Airflow knows of a run when its first task starts."""

    dag_id: str
    run_id: str
    run_type: str
    interval: tuple[datetime, datetime] | None
    params: Mapping[str, Any]

    @property
    def identity(self) -> RunIdentity:
        return RunIdentity(self.dag_id, self.run_id)

    @property
    def kind(self) -> RunType:
        return _RUN_TYPES.get(self.run_type, RunType.MANUAL)


def resolve(spec: RefreshSpec, run: AirflowRun, folder: RunFolder | None = None) -> RunSpec:
    """The run's resolved spec: read from its folder if it was decided before, else decided and written there.

    `folder`: where the run works; None for the one that is its own now, made once all is decided.

    Raises:
        WindowError, SpecError: the Params cannot be used; nothing was written.
        RunNameTakenError: another run's folder.
    """
    place = folder or run.identity.folder
    if place.spec_path.exists():
        return load_run_spec(place.spec_path)
    resolved = decided(spec, run, place)
    folder = folder or run.identity.begin()
    dump_run_spec(resolved, folder.spec_path)
    return resolved


def decided(spec: RefreshSpec, run: AirflowRun, folder: RunFolder) -> RunSpec:
    """What the run would be if it began now; writes nothing.

    Raises:
        WindowError, SpecError: the Params cannot be used.
    """
    effective = with_overrides(spec, overrides_of(run.params, spec))
    landed = landed_days(data_root(spec.data.root))
    purpose = purpose_of(run.params, spec, run.kind)
    request = WindowRequest(
        run_type=run.kind,
        purpose=purpose,
        interval=run.interval,
        window_start=day_of(run.params, WINDOW_START),
        window_end=day_of(run.params, WINDOW_END),
        days=run.params.get(DAYS),
        warm_start=run.params.get(WARM_START) or Warm.AUTO,
    )
    if before := trained_before(folder):
        window = load_run_spec(before.spec_path).run.window
        request = replace(request, window_start=window.start, window_end=window.end, days=None)
    anchors = completed_anchors(folder.root.parent)
    decision = decide(effective, request, anchors=anchors, landed=landed, today=datetime.now(UTC).date())
    _report(spec, decision)
    return RunSpec(
        refresh=effective,
        run=RunInfo(
            run=folder.run,
            window=decision.window,
            run_type=request.run_type,
            purpose=purpose,
            publish_live=goes_live(run.params, purpose),
            warm_start=decision.anchor.warm_start() if decision.anchor else None,
            params=chosen(run.params, spec),
            newest_day=landed[-1] if landed else None,
        ),
    )


def _report(spec: RefreshSpec, decision: Decision) -> None:
    window, anchor = decision.window, decision.anchor
    log.info("window: %s up to %s (exclusive); warm start: %s", window.start, window.end, anchor and anchor.run)
    if anchor is None:
        return
    if skipped := _days_between(spec, anchor, window.start):
        log.warning("days that no run of this chain has trained: %s", ", ".join(map(str, skipped)))
    if anchor.stale:
        log.warning("warm start %s is stale: %s; train its days again first", anchor.run, why_stale(anchor.folder))


def _days_between(spec: RefreshSpec, anchor: Anchor, start: date) -> list[date]:
    """Days with something to train on that lie between the anchor and the window."""
    days = [anchor.window.end + timedelta(days=n) for n in range((start - anchor.window.end).days)]
    closed = closed_days(data_root(spec.data.root), days)
    return [day for day in days if day not in closed]


def days_of(run: RunInfo) -> list[date]:
    """The days of a run's window."""
    return [run.window.start + n * ONE_DAY for n in range(run.window.days)]
