"""The documented example: a plain PyTorch loop with the recorder, run as a user runs it, killed and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ett_reports.events import L1, Component, Phase
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.report import JobReport, JobState
from tests.ett_reports.story import check_sums

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "plain_pytorch.py"


def run(folder: Path, *options: str) -> int:
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(EXAMPLE), str(folder), *options], env=environment).returncode


def report_of(folder: Path) -> JobReport:
    log = read_log(folder)
    assert log.quality.torn_lines == log.quality.invalid_events == log.quality.unknown_points == 0
    report = reduce(log)
    check_sums(report)
    return report


@pytest.mark.integration
def test_example_dies_is_resumed_and_tells_where_its_time_went(tmp_path: Path) -> None:
    """Saved after 20 and 40 steps; dies after 50, so that 10 steps are replayed."""
    assert run(tmp_path, "--die-after", "50") == 1
    dead = report_of(tmp_path)
    assert dead.attempts[0].steps == 50 and dead.high_water_mark == 50 * 64
    assert run(tmp_path) == 0
    report = report_of(tmp_path)
    assert report.state is JobState.COMPLETED and report.nof == 1
    assert [attempt.steps for attempt in report.attempts] == [50, 20]
    assert report.planned_samples == report.high_water_mark == 60 * 64
    assert report.failures[0].replayed_samples == 10 * 64 and report.failures[0].recovered
    phases = {total.phase for total in report.phases if total.exposed_ns}
    assert {Phase.TRAIN_MODULE, Phase.CHECKPOINT_RESTORE, Phase.EVALUATION, Phase.CHECKPOINT_BLOCKING} <= phases
    assert {Phase.REPLAY, Phase.RETRY_WAIT} <= phases
    assert report.ett is not None and 0 < report.ett < 1
    assert report.l1[L1.TTS] > 0 and report.l2[Component.EFFECTIVE_TRAINING] == report.productive_ns > 0
    assert report.checkpoints.saves == 3


def test_loop_needs_three_lines() -> None:
    """The integration that docs/metric.md promises."""
    source = EXAMPLE.read_text()
    assert [source.count(f"# {number} of 3") for number in (1, 2, 3)] == [1, 1, 1]
