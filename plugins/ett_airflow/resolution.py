"""Turns an Airflow run into a run folder with its resolved spec, once: later tries and clears find it decided."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ett_airflow.anchors import completed_anchors
from ett_airflow.parameters import WARM_START, WINDOW_END, WINDOW_START, chosen, day_of, overrides_of
from ett_airflow.partitions import landed_days
from ett_airflow.window import Decision, Warm, WindowRequest, decide
from trainer.run_folder import RunFolder, data_root, safe_name
from trainer.spec import RefreshSpec, RunInfo, RunSpec, RunType, dump_run_spec, load_run_spec, with_overrides

log = logging.getLogger(__name__)

ORIGIN_VERSION = 1
_RUN_TYPES = {
    "scheduled": RunType.SCHEDULED,
    "backfill": RunType.BACKFILL,
    "manual": RunType.MANUAL,
    "operator_triggered": RunType.MANUAL,
    "asset_triggered": RunType.ASSET,
    "asset_materialization": RunType.ASSET,
}


class RunNameTakenError(ValueError):
    """Two Airflow runs whose ids give the same folder name."""

    def __init__(self, run_id: str, folder: RunFolder, owner: str) -> None:
        super().__init__(
            f"run {run_id!r} would share the folder {folder.root} with run {owner!r}; trigger it under another run id"
        )


@dataclass(frozen=True, kw_only=True)
class AirflowRun:
    """What Airflow knows of a run when its first task starts."""

    dag_id: str
    run_id: str
    run_type: str
    interval: tuple[datetime, datetime] | None
    params: Mapping[str, Any]

    @property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.dag_id, safe_name(self.run_id))


def resolve(spec: RefreshSpec, run: AirflowRun) -> RunSpec:
    """The run's resolved spec: read from its folder if it was decided before, else decided and written there.

    Raises:
        WindowError, SpecError: the Params cannot be used; nothing was written.
        RunNameTakenError: another run's folder.
    """
    folder = run.folder
    if folder.spec_path.exists():
        _check_origin(folder, run)
        return load_run_spec(folder.spec_path)
    resolved = _decided(spec, run)
    folder.create()
    _write_origin(folder, run)
    dump_run_spec(resolved, folder.spec_path)
    return resolved


def _decided(spec: RefreshSpec, run: AirflowRun) -> RunSpec:
    effective = with_overrides(spec, overrides_of(run.params, spec))
    landed = landed_days(data_root(spec.data.root))
    request = WindowRequest(
        run_type=_RUN_TYPES.get(run.run_type, RunType.MANUAL),
        interval=run.interval,
        window_start=day_of(run.params, WINDOW_START),
        window_end=day_of(run.params, WINDOW_END),
        warm_start=run.params.get(WARM_START) or Warm.AUTO,
    )
    anchors = completed_anchors(run.folder.root.parent)
    decision = decide(effective, request, anchors=anchors, landed=landed, today=datetime.now(UTC).date())
    _report(decision)
    return RunSpec(
        refresh=effective,
        run=RunInfo(
            run=run.folder.run,
            window=decision.window,
            run_type=request.run_type,
            warm_start=decision.anchor.warm_start() if decision.anchor else None,
            params=chosen(run.params, spec),
            newest_day=landed[-1] if landed else None,
        ),
    )


def _report(decision: Decision) -> None:
    window, anchor = decision.window, decision.anchor
    log.info("window: %s up to %s (exclusive); warm start: %s", window.start, window.end, anchor and anchor.run)
    if anchor and anchor.window.end < window.start:
        log.warning("days from %s up to %s (exclusive) are trained by neither", anchor.window.end, window.start)


def _write_origin(folder: RunFolder, run: AirflowRun) -> None:
    origin = {"version": ORIGIN_VERSION, "dag_id": run.dag_id, "run_id": run.run_id}
    (folder.root / "airflow.json").write_text(json.dumps(origin) + "\n", encoding="utf-8")


def _check_origin(folder: RunFolder, run: AirflowRun) -> None:
    try:
        owner = json.loads((folder.root / "airflow.json").read_text(encoding="utf-8"))["run_id"]
    except (OSError, ValueError, KeyError):
        return  # made by hand for `python -m trainer`: no Airflow run owns it
    if owner != run.run_id:
        raise RunNameTakenError(run.run_id, folder, owner)
