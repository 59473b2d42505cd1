"""What a day trained again makes stale: all that was built on its older training, and nothing else."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from ett_airflow.anchors import completed_anchors
from ett_airflow.descendants import mark_descendants, why_stale

from tests.plugins.conftest import SPEC_PATH
from trainer.run_folder import RunFolder
from trainer.spec import Purpose, RunInfo, RunSpec, WarmStart, Window, dump_run_spec, load_spec
from trainer.storage import MANIFEST_NAME

SPEC = load_spec(SPEC_PATH)


def run(name: str, first: int, days: int = 1, *, start: str | None = None, **fields: object) -> RunFolder:
    """A completed run whose window begins on `first` November."""
    folder = RunFolder.of("tiny", name).create()
    begin = date(2026, 11, first)
    info = RunInfo(
        run=name,
        window=Window(start=begin, end=begin + timedelta(days=days)),
        warm_start=WarmStart(run=start, anchor=f"/runs/{start}/anchor") if start else None,
        **fields,
    )
    dump_run_spec(RunSpec(refresh=SPEC, run=info), folder.spec_path)
    folder.anchor_dir.mkdir()
    (folder.anchor_dir / MANIFEST_NAME).write_text("{}")
    return folder


@pytest.fixture
def chain(home: Path) -> None:
    """Two days from scratch, then a day each."""
    run("first", 20, 2)
    run("d22", 22, start="first")
    run("d23", 23, start="d22")
    run("d24", 24, start="d23")


def test_all_that_was_built_on_the_day_is_stale_and_nothing_before_it(chain: None) -> None:
    assert mark_descendants(run("d22-again", 22, start="first")) == ["d23", "d24"]
    assert why_stale(RunFolder.of("tiny", "d24")) == "built on d22, whose days run d22-again has trained again"
    assert [why_stale(RunFolder.of("tiny", name)) for name in ("first", "d22", "d22-again")] == [None] * 3


def test_a_new_day_makes_nothing_stale(chain: None) -> None:
    assert mark_descendants(run("d25", 25, start="d24")) == []


def test_a_trial_makes_nothing_stale_and_no_trial_is_replaced(chain: None) -> None:
    assert mark_descendants(run("trial", 22, start="first", purpose=Purpose.TUNING)) == []
    run("from-trial", 23, start="trial", purpose=Purpose.TUNING)
    assert mark_descendants(run("d22-again", 22, start="first")) == ["d23", "d24"]


def test_a_window_that_covers_many_days_replaces_each(chain: None) -> None:
    assert mark_descendants(run("again", 20, 3)) == ["d23", "d24"]


def test_training_the_later_days_again_heals_the_chain(chain: None) -> None:
    mark_descendants(run("d22-again", 22, start="first"))
    healed = run("d23-again", 23, start="d22-again")
    assert mark_descendants(healed) == ["d24"]
    assert why_stale(healed) is None
    newest = [anchor.run for anchor in completed_anchors(healed.root.parent) if anchor.window.end == date(2026, 11, 24)]
    assert newest == ["d23", "d23-again"], "a fresh anchor is preferred to a stale one of the same day"


def test_it_is_told_each_time_and_written_once(chain: None) -> None:
    again = run("d22-again", 22, start="first")
    mark_descendants(again)
    before = (RunFolder.of("tiny", "d23").root / "stale.json").read_text()
    assert mark_descendants(again) == ["d23", "d24"]
    assert (RunFolder.of("tiny", "d23").root / "stale.json").read_text() == before
