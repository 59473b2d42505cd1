"""The live figure of a training job: made in a process of its own, and only when it is due."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ett_airflow import live_figure
from ett_airflow.live_figure import LiveFigure, LiveFigures

from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder

FIGURE = LiveFigure(attempt=2, stepping=True, cursor=50_000, planned=200_000, ett=0.4321, wall_s=61.2, nof=1)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """One attempt that has trained 40 of 100 samples and goes on."""
    launcher = ProcessIdentity(job="tiny/a", source=Source.LAUNCHER, process="launcher-a1", attempt=1)
    with Recorder(tmp_path / "events", launcher) as recorder:
        recorder.point(Point.SUBMITTED)
        recorder.point(Point.ALLOCATED, devices=1)
    trainer = ProcessIdentity(job="tiny/a", source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0)
    with Recorder(tmp_path / "events", trainer) as recorder:
        recorder.point(Point.STREAM, planned_samples=100)
        recorder.begin_steps(cursor=0)
        recorder.step(cursor=40)
    return tmp_path


def test_its_line_says_samples_pace_and_ett() -> None:
    assert FIGURE.line(1234.6) == (
        "attempt 2: 50,000 of 200,000 samples (25%), 1,235/s; ETT so far 43.2% of 61 s, 1 failures"
    )
    early = LiveFigure(attempt=1, stepping=False, cursor=0, planned=None, ett=None, wall_s=0.0, nof=0)
    assert early.line() == "attempt 1: no step yet, 0 samples before it; ETT so far n/a of 0 s"


def test_it_is_the_log_reduced_as_it_is_now(run_folder: Path) -> None:
    figure = live_figure.live_figure(run_folder)
    assert figure is not None
    assert (figure.attempt, figure.cursor, figure.planned, figure.stepping) == (1, 40, 100, True)


def test_a_run_without_a_log_has_none_yet(tmp_path: Path) -> None:
    assert live_figure.live_figure(tmp_path) is None


def test_a_triggerer_gets_it_without_waiting(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_figure, "PACE_S", 0.0)

    async def story() -> str:
        figures = LiveFigures(run_folder)
        assert figures.look() is None, "begins to be made"
        while (line := figures.look()) is None:
            await asyncio.sleep(0.05)
        await figures.stop()
        return line

    assert asyncio.run(asyncio.wait_for(story(), 60)).startswith("attempt 1: 40 of 100 samples (40%)")


def test_one_that_takes_too_long_is_given_up(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_figure, "_LIMIT_S", 0.01)
    assert asyncio.run(live_figure._measured(run_folder)) is None
