"""The terminal report: whole at 80 columns, and nothing of an event's text reaches the terminal as a command."""

from __future__ import annotations

import pytest

from ett_reports.render.terminal import render_terminal, to_text
from ett_reports.report import JobReport, RefreshReport
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import busy_job, failed_once_job, hostile_job, quiet_job, refresh_report

POLICY = policy_from({"pt2_compile": {"team": "compiler", "contact": "#pt2"}}, {"pt2_compile": {"seconds": 60}})


def text_of(job: JobReport, refresh: RefreshReport | None = None, width: int = 80) -> str:
    return to_text(render_terminal(job, refresh, judge(Snapshot(job=job, refresh=refresh, policy=POLICY))), width)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("job", [quiet_job(), failed_once_job(), busy_job(3)], ids=["quiet", "failed", "busy"])
def test_fits_its_width(job: JobReport, width: int) -> None:
    lines = text_of(job, refresh_report(), width).splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line]


def test_headline_names_cost_owner_and_remedy() -> None:
    first = text_of(failed_once_job()).splitlines()[:6]
    assert first[1] == "ETT 68.6%  8 min 16 s of 12 min 03 s trained on new data  [completed]"
    assert first[2] == "Cost the most: PT2 compilation 1 min 18 s (10.8%), most of it compile"
    assert first[3] == "Whose it is:   compiler (#pt2)"
    assert first[4].startswith("What to do:    Compilation was on the critical path.")


def test_components_and_classes_each_sum_to_wall_time() -> None:
    lines = [line for line in text_of(failed_once_job()).splitlines() if line.startswith("= wall time")]
    assert len(lines) == 2
    assert all("723.0" in line and "100.0%" in line for line in lines)


def test_service_levels_failures_tasks_and_metrics_are_there() -> None:
    text = text_of(failed_once_job(), refresh_report())
    assert "BREACHED ≤ 60 s" in text
    assert "1 failure, mean TTR 1 min 31 s" in text
    assert "rank 1 was killed" in text
    assert "train         71.3%" in text
    assert "holdout      0.9518  0.7207" in text


def test_missing_sources_are_said_to_be_unknown() -> None:
    import dataclasses

    text = text_of(dataclasses.replace(quiet_job(), degraded=("no events of the launcher",)))
    assert "warning no events of the launcher" in text
    assert "degraded: what is missing is not healthy, it is unknown" in text


def test_hostile_text_cannot_steer_the_terminal() -> None:
    text = text_of(hostile_job("\x1b]0;owned\x07[bold red]x[/] \u202e\r"), refresh_report())
    assert not {character for character in text if ord(character) < 32} - {"\n"}
    assert "\u202e" not in text
    assert "[bold red]x[/]" in text.replace("\n", "")
