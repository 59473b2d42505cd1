"""Which days `make refresh` takes, and under which name."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from ett_airflow.operators import airflow_run
from ett_airflow.partitions import LANDING_MARKER
from ett_airflow.resolution import resolve
from ett_airflow.stack.next_day import next_window, run_id_for
from ett_airflow.stack.server import StackError
from ett_airflow.window import NothingToTrainError

from tests.plugins.conftest import SPEC_PATH, context_of
from trainer.run_folder import RunFolder
from trainer.spec import Window, load_spec
from trainer.storage import MANIFEST_NAME

SPEC = load_spec(SPEC_PATH)  # first_window_days: 2


def land(home: Path, days: int) -> None:
    for back in range(days):
        folder = home / "data" / "tiny" / f"day={date(2026, 11, 28) - timedelta(days=back)}"
        folder.mkdir(parents=True)
        (folder / LANDING_MARKER).write_text(json.dumps({"closed": None}))


def train(run_id: str, window: Window) -> None:
    params = {"window_start": window.start.isoformat(), "window_end": window.end.isoformat()}
    resolve(SPEC, airflow_run(context_of(run_id, params=params)))
    folder = RunFolder.of("tiny", run_id)
    folder.anchor_dir.mkdir()
    (folder.anchor_dir / MANIFEST_NAME).write_text("{}")


def test_the_first_window_leaves_a_week_of_days_and_each_call_takes_the_next(home: Path) -> None:
    land(home, 20)
    seen = []
    with pytest.raises(NothingToTrainError):
        while True:
            window = next_window(SPEC)
            seen.append((window.start.day, window.end.day))
            train(run_id_for(SPEC, window), window)
    assert seen == [(20, 22), *((day, day + 1) for day in range(22, 29))]


def test_little_data_is_shared_between_the_first_window_and_what_follows(home: Path) -> None:
    land(home, 4)
    assert (next_window(SPEC).start.day, next_window(SPEC).end.day) == (25, 27)


def test_without_data_it_says_so(home: Path) -> None:
    with pytest.raises(StackError, match="no data of tiny has landed"):
        next_window(SPEC)


def test_a_name_that_is_taken_gets_a_number(home: Path) -> None:
    window = Window(start=date(2026, 11, 20), end=date(2026, 11, 21))
    assert run_id_for(SPEC, window) == "2026-11-20"
    RunFolder.of("tiny", "2026-11-20").create()
    RunFolder.of("tiny", "2026-11-20-2").create()
    assert run_id_for(SPEC, window) == "2026-11-20-3"
