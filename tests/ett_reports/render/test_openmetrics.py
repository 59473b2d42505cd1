"""OpenMetrics: what Prometheus reads, and nothing that an event's text could add to it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from ett_reports.render.openmetrics import render_openmetrics
from ett_reports.report import JobReport, RefreshReport
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import failed_once_job, hostile_job, quiet_job, refresh_report

SAMPLE = re.compile(r'^[a-z_]+\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\} (?:-?\d[\d.e+-]*|NaN|[+-]Inf)$')


def metrics_of(job: JobReport, refresh: RefreshReport | None = None) -> str:
    policy = policy_from({"pt2_compile": {"team": 'the "A" team'}}, {"pt2_compile": {"seconds": 60}})
    return render_openmetrics(job, refresh, judge(Snapshot(job=job, refresh=refresh, policy=policy)))


@pytest.mark.parametrize("job", [quiet_job(), failed_once_job(), hostile_job('x"} 1\nett_ratio{} 0\\')])
def test_every_line_is_a_comment_or_a_sample(job: JobReport) -> None:
    lines = metrics_of(job, refresh_report()).split("\n")
    assert lines[-2:] == ["# EOF", ""]
    samples = [line for line in lines[:-1] if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in samples), [line for line in samples if not SAMPLE.match(line)][:3]


def test_families_are_typed_once_and_their_samples_follow_them() -> None:
    family, seen = "", set()
    for line in metrics_of(failed_once_job(), refresh_report()).splitlines():
        if line.startswith("# TYPE "):
            family = line.split()[2]
            assert family not in seen
            seen.add(family)
        elif line.startswith("# UNIT "):
            assert family.endswith("_" + line.split()[3])
        elif not line.startswith("#"):
            assert line.split("{")[0] == family


def test_figures_are_the_report_s() -> None:
    job = failed_once_job()
    text = metrics_of(job, refresh_report())
    labels = 'refresh="completejourney",run="scheduled__2026-11-28"'
    assert f'ett_ratio{{{labels},of="wall"}} {job.ett!r}' in text
    assert f'ett_component_seconds{{{labels},component="pt2_compile"}} 78' in text
    assert f'ett_failures{{{labels},cause="infrastructure"}} 1' in text
    breached = f'ett_service_level{{{labels},component="pt2_compile",owner="the \\"A\\" team",health="breached"}} 1'
    assert breached in text


def test_what_is_unknown_has_no_sample() -> None:
    assert "ett_freshness_seconds" not in metrics_of(quiet_job())
    assert "ett_mean_ttr_seconds" not in metrics_of(quiet_job())


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
@pytest.mark.parametrize("job", [failed_once_job(), hostile_job('x"} 1\n\\ \u202e')], ids=["failed", "hostile"])
def test_promtool_accepts_it(job: JobReport) -> None:
    text = metrics_of(job, refresh_report())
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
