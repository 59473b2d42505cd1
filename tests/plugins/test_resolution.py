"""A run is decided once, in a private folder, and found decided ever after."""

from __future__ import annotations

import json
import stat
from datetime import date, timedelta
from pathlib import Path

import pytest
from ett_airflow.generation import RunNameTakenError
from ett_airflow.operators import airflow_run
from ett_airflow.parameters import overrides_of, params_of
from ett_airflow.partitions import LANDING_MARKER
from ett_airflow.resolution import resolve
from ett_airflow.window import WindowError

from tests.plugins.conftest import SPEC_PATH, at_three, context_of
from trainer.run_folder import RunFolder
from trainer.spec import Preset, Purpose, RunType, SpecError, Technique, load_run_spec, load_spec
from trainer.storage import MANIFEST_NAME

SPEC = load_spec(SPEC_PATH)


def land(home: Path, *days: date, closed: str | None = None) -> None:
    for day in days:
        folder = home / "data" / "tiny" / f"day={day}"
        folder.mkdir(parents=True)
        (folder / LANDING_MARKER).write_text(json.dumps({"closed": closed}))


def complete(run: str) -> None:
    folder = RunFolder.of("tiny", run)
    folder.anchor_dir.mkdir()
    (folder.anchor_dir / MANIFEST_NAME).write_text("{}")


def test_one_day_after_another_each_from_the_last(home: Path) -> None:
    land(home, *(date(2026, 11, 20) + timedelta(days=n) for n in range(4)))
    first = resolve(
        SPEC, airflow_run(context_of("a", params={"window_start": "2026-11-20", "window_end": "2026-11-22"}))
    )
    assert first.run.warm_start is None
    complete("a")
    second = resolve(SPEC, airflow_run(context_of("b")))
    assert (second.run.window.start, second.run.window.days) == (date(2026, 11, 22), 1)
    assert second.run.warm_start is not None
    assert second.run.warm_start.run == "a"
    assert second.run.newest_day == date(2026, 11, 23)


def test_a_retry_or_a_clear_finds_what_was_decided(home: Path) -> None:
    land(home, date(2026, 11, 20))
    before = resolve(SPEC, airflow_run(context_of("a", params={"batch_size": 32})))
    land(home, date(2026, 11, 21))
    assert resolve(SPEC, airflow_run(context_of("a", try_number=2, params={"batch_size": 128}))) == before
    assert load_run_spec(RunFolder.of("tiny", "a").spec_path) == before


@pytest.mark.parametrize(
    ("run_type", "expected"),
    [("scheduled", RunType.SCHEDULED), ("backfill", RunType.BACKFILL), ("manual", RunType.MANUAL),
     ("asset_triggered", RunType.ASSET)],
)  # fmt: skip
def test_every_kind_of_run_writes_its_window_down(home: Path, run_type: str, expected: RunType) -> None:
    land(home, date(2026, 11, 24), date(2026, 11, 25))
    dated = run_type in ("scheduled", "backfill")
    context = context_of("a", run_type=run_type, day=at_three(2026, 11, 25) if dated else None)
    resolved = resolve(SPEC, airflow_run(context))
    assert resolved.run.run_type is expected
    assert (resolved.run.window.start, resolved.run.window.end) == (date(2026, 11, 24), date(2026, 11, 26))


def test_the_folder_is_private(home: Path) -> None:
    resolve(SPEC, airflow_run(context_of("a")))
    assert stat.S_IMODE(RunFolder.of("tiny", "a").root.stat().st_mode) == 0o700


def test_a_run_id_that_would_share_a_folder_is_refused(home: Path) -> None:
    resolve(SPEC, airflow_run(context_of("manual__2026-11-29T10:00")))
    with pytest.raises(RunNameTakenError, match="another run id"):
        resolve(SPEC, airflow_run(context_of("manual__2026-11-29T10_00")))


def test_closed_days_are_not_trained(home: Path) -> None:
    land(home, date(2026, 11, 20))
    land(home, date(2026, 11, 21), closed="holiday")
    assert resolve(SPEC, airflow_run(context_of("a"))).run.newest_day == date(2026, 11, 20)


def test_params_change_what_they_name_and_nothing_else(home: Path) -> None:
    params = {"batch_size": 32, "dense_learning_rate": 0.5, "preset": "baseline", "ranks": 1}
    resolved = resolve(SPEC, airflow_run(context_of("a", params=params)))
    assert resolved.refresh.training.batch_size == 32
    assert resolved.refresh.training.dense_learning_rate == 0.5
    assert resolved.refresh.training.sparse_learning_rate == SPEC.training.sparse_learning_rate
    assert resolved.refresh.optimizations.preset is Preset.BASELINE
    assert resolved.refresh.resources.ranks == 1
    assert resolved.run.params == params


def test_a_technique_is_as_in_the_spec_unless_it_is_switched_by_name(home: Path) -> None:
    params = {"preset": "baseline", "artifact_cache": "on", "dynamic_shapes": "off", "async_checkpoint": "spec"}
    optimizations = resolve(SPEC, airflow_run(context_of("a", params=params))).refresh.optimizations
    switched = {technique.value for technique in Technique if optimizations.enabled(technique)}
    assert switched == {"artifact_cache"}
    assert (optimizations.dynamic_shapes, optimizations.async_checkpoint) == (False, None)


def test_every_technique_is_in_the_form() -> None:
    assert {technique.value for technique in Technique} <= params_of(SPEC).keys()


@pytest.mark.parametrize(
    ("run_type", "params", "purpose", "live"),
    [
        ("manual", {}, Purpose.DAILY, True),
        ("manual", {"window_start": "2026-11-20", "window_end": "2026-11-22"}, Purpose.DAILY, True),
        ("manual", {"dense_learning_rate": 0.5}, Purpose.TUNING, False),
        ("manual", {"days": 3}, Purpose.TUNING, False),
        ("manual", {"warm_start": "none"}, Purpose.TUNING, False),
        ("manual", {"artifact_cache": "off"}, Purpose.TUNING, False),
        ("manual", {"dense_learning_rate": 0.5, "publish_live": True}, Purpose.TUNING, True),
        ("manual", {"dense_learning_rate": 0.5, "purpose": "daily"}, Purpose.DAILY, True),
        ("manual", {"purpose": "tuning"}, Purpose.TUNING, False),
        ("backfill", {"dense_learning_rate": 0.5}, Purpose.DAILY, True),
        ("scheduled", {}, Purpose.DAILY, True),
    ],
)
def test_a_run_by_hand_is_a_trial_as_soon_as_it_trains_otherwise_than_the_spec(
    home: Path, run_type: str, params: dict[str, object], purpose: Purpose, live: bool
) -> None:
    dated = at_three(2026, 11, 25) if run_type != "manual" else None
    run = resolve(SPEC, airflow_run(context_of("a", run_type=run_type, day=dated, params=params))).run
    assert (run.purpose, run.publish_live) == (purpose, live)


def test_the_defaults_override_nothing() -> None:
    assert overrides_of({name: param.value for name, param in params_of(SPEC).items()}, SPEC) == {}


def test_no_param_names_code() -> None:
    assert not [name for name in params_of(SPEC) if "factory" in name or "model" in name]
    assert overrides_of({"factory": "os:system", "model": {"factory": "os:system"}}, SPEC) == {}


@pytest.mark.parametrize("params", [{"window_start": "yesterday"}, {"window_end": "2026-11-20"}])
def test_a_window_that_cannot_be_read_writes_nothing(home: Path, params: dict[str, str]) -> None:
    with pytest.raises(WindowError):
        resolve(SPEC, airflow_run(context_of("a", params=params)))
    assert not RunFolder.of("tiny", "a").root.exists()


def test_a_bad_value_is_refused_by_the_spec_s_own_rules(home: Path) -> None:
    with pytest.raises(SpecError, match="batch_size"):
        resolve(SPEC, airflow_run(context_of("a", params={"batch_size": -1})))
