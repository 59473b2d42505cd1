"""The freshness deadline: told once a scheduled day is not live in time, and only then."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ett_airflow import alerts
from ett_airflow.freshness import deadline_missed, freshness_alert

from tests.plugins.conftest import SPEC_PATH
from trainer.run_folder import registry_root
from trainer.spec import load_spec


@pytest.fixture
def told(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the owner would be told."""
    found: list[dict[str, Any]] = []

    def alert_late(run: alerts.AlertedRun, context: Any, *, figure: str, limit: str) -> None:
        found.append({"run": run.run_id, "window_end": str(run.window_end), "figure": figure, "limit": limit})

    monkeypatch.setattr(alerts, "alert_late", alert_late)
    return found


def live(*window: str) -> None:
    folder = registry_root() / "tiny" / "live"
    folder.mkdir(parents=True)
    (folder / "9.json").write_text(json.dumps({"snapshot": "old", "window": ["2026-11-01", "2026-11-02"]}))
    (folder / "10.json").write_text(json.dumps({"snapshot": "x", "window": window}))


def missed(run_type: str = "scheduled", end: str | None = "2026-11-29T03:00:00Z", within: str = "7200") -> str:
    spec = Path(SPEC_PATH).read_text().replace("schedule:", f"freshness_deadline_s: {within}\nschedule:")
    path = Path(registry_root().parent / "tiny.yaml")
    path.write_text(spec)
    run = {"dag_run_id": "scheduled__1", "run_type": run_type, "data_interval_end": end}
    return asyncio.run(deadline_missed(spec_path=str(path), context={"dag_run": run}))


def test_a_day_that_is_not_live_in_time_is_told_to_the_owner(told: list[dict[str, Any]]) -> None:
    live("2026-11-27", "2026-11-28")
    assert missed() == "late: the live snapshot ends with 2026-11-27"
    limit = "7200 s after the end of 2026-11-28"
    figure = "the live snapshot ends with 2026-11-27"
    assert told == [{"run": "scheduled__1", "window_end": "2026-11-29", "figure": figure, "limit": limit}]


def test_a_first_day_that_fails_is_told_too(told: list[dict[str, Any]]) -> None:
    assert missed() == "late: nothing is live"
    assert len(told) == 1


def test_a_day_that_another_run_has_made_live_is_not_late(told: list[dict[str, Any]]) -> None:
    live("2026-11-20", "2026-11-29")
    assert "in time" in missed()
    assert told == []


@pytest.mark.parametrize(("run_type", "end"), [("backfill", "2026-11-29T03:00:00Z"), ("manual", None)])
def test_what_is_no_scheduled_day_is_not_due(told: list[dict[str, Any]], run_type: str, end: str | None) -> None:
    assert "nothing was due" in missed(run_type, end)
    assert told == []


def test_a_spec_without_a_deadline_has_none() -> None:
    spec = load_spec(SPEC_PATH)
    assert freshness_alert(spec, SPEC_PATH) is None
    due = freshness_alert(spec.model_copy(update={"freshness_deadline_s": 7200.0}), SPEC_PATH)
    assert due is not None
    assert type(due.interval) is timedelta, "no other can be stored"
    assert due.interval.total_seconds() == 21 * 3600 + 7200  # type: ignore[union-attr]
