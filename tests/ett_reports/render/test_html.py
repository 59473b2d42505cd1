"""The page: opens on the answer, holds everything, asks for nothing, and shows hostile text as text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from html.parser import HTMLParser

import pytest

from ett_reports.events import L1, Component, Phase
from ett_reports.render.html import render_html
from ett_reports.report import JobReport, JobState, RefreshReport
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import (
    busy_job,
    failed_once_job,
    hostile_job,
    job_report,
    quiet_job,
    refresh_report,
)

POLICY = policy_from(
    {"pt2_compile": {"team": "compiler", "contact": "#pt2"}, "scheduling": {"team": "capacity"}},
    {"pt2_compile": {"seconds": 60}, "scheduling": {"share": 0.1}},
)
HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)>\x00\x1b[31m\u202egnp.exe"


class Page(HTMLParser):
    """Tags, their attributes, and the text outside style."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(job: JobReport, refresh: RefreshReport | None = None, title: str = "a run", **spec: object) -> str:
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=POLICY))
    return render_html(job, refresh, judgement, title=title, spec_summary=spec)


def test_opens_on_the_answer() -> None:
    text = " ".join(Page(page_of(failed_once_job(), refresh_report())).text.split())
    opening = text[: text.index("Lifecycle")]
    assert "68.6 %" in opening
    assert re.search(r"Cost the most PT2 compilation 1 min 18 s, 10\.8% of wall time", opening)
    assert re.search(r"Whose it is compiler #pt2", opening)
    assert "A new model pays it once if the compile cache is on" in opening
    assert "PT2 compilation took 78.0 s, over its budget of 60.0 s" in opening


def test_lifecycle_comes_before_the_tables() -> None:
    source = page_of(failed_once_job(), refresh_report())
    order = [
        source.index(f'id="h-{name}"') for name in ("answer", "life", "parts", "cross", "leaves", "tasks", "failures")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("job", [quiet_job(), failed_once_job(), busy_job(1), busy_job(20)], ids=lambda job: job.nof)
def test_every_attempt_has_a_lane_and_every_block_lies_within_it(job: JobReport) -> None:
    source = page_of(job)
    assert source.count('<svg class="lane attempt') == len(job.attempts)
    places = re.findall(r'<rect class="p-[^"]*" x="([\d.]+)%" width="([\d.]+)%"', source)
    assert all(float(left) + float(width) <= 100.01 for left, width in places)


def test_both_margins_of_the_cross_table_are_sums() -> None:
    source = page_of(failed_once_job())
    table = source[source.index('<table class="heat">') :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.S)[1:]
    figures = [
        [float(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows
    ]
    assert len(figures) == len(L1) + 1 and all(len(row) == len(Component) + 1 for row in figures)
    for row in figures:
        assert sum(row[:-1]) == pytest.approx(row[-1])
    for column in zip(*figures, strict=True):
        assert sum(column[:-1]) == pytest.approx(column[-1])
    assert figures[-1][-1] == 723.0


def test_nothing_is_loaded_and_no_script_exists() -> None:
    page = Page(page_of(failed_once_job(HOSTILE), refresh_report(), title=HOSTILE, model=HOSTILE))
    assert not [tag for tag, _ in page.tags if tag in {"script", "img", "iframe", "object", "embed", "base", "form"}]
    assert [attrs["href"] for tag, attrs in page.tags if tag == "link"] == ["data:,"]
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name in {"style", "src", "srcset"}], (tag, attrs)


def test_content_security_policy_admits_only_our_style_sheet() -> None:
    source = page_of(quiet_job())
    style = re.search(r"<style>(.*?)</style>", source, re.S)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', source)
    assert style and policy
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert html.unescape(policy.group(1)) == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert source.index("Content-Security-Policy") < source.index("<style>")
    assert "@import" not in style.group(1) and not re.search(r"url\((?!#)", style.group(1))


def test_hostile_text_everywhere_is_shown_as_text() -> None:
    job = hostile_job(HOSTILE)
    refresh = dataclasses.replace(refresh_report(), snapshot_version=HOSTILE, degraded=(HOSTILE,), run_type=HOSTILE)
    source = page_of(job, refresh, title=HOSTILE, note=HOSTILE, **{HOSTILE: {HOSTILE: [HOSTILE]}})
    assert "<script" not in source and "<img" not in source
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", source)
    assert "\\x1b[31m" in source and "\\u202e" in source
    assert source.count("&lt;script&gt;") > 10


def test_a_very_long_text_is_cut_and_says_so() -> None:
    source = page_of(failed_once_job("x" * 1_000_000))
    assert len(source) < 400_000
    assert "(+999400 characters)" in source


def test_lone_surrogates_do_not_break_the_encoding() -> None:
    assert b"\\ud800" in page_of(failed_once_job("a\ud800b")).encode("utf-8")


def test_live_run_says_as_of_when() -> None:
    job = dataclasses.replace(quiet_job(), state=JobState.LIVE)
    assert "Live: figures as of" in Page(page_of(job)).text


def test_nothing_measured_reads_not_available() -> None:
    job = job_report([])
    text = " ".join(Page(page_of(job)).text.split())
    assert "n/a Effective training time: 0 s of 0 s" in text
    assert "Nothing was lost." in text


def test_twenty_thousand_segments_stay_a_small_page() -> None:
    piece = [(L1.PRODUCTIVE, Phase.STEP, 0.01, 1), (L1.IN_LOOP, Phase.DATA_STALL, 0.001, 1)]
    job = job_report(piece * 10_000)
    assert len(page_of(job)) < 600_000


def test_every_component_is_shown_with_its_owner_and_service_level() -> None:
    text = " ".join(Page(page_of(quiet_job())).text.split())
    for name in ("Scheduling", "Trainer initialization", "Effective training", "Wasted training", "Unattributed"):
        assert name in text
    assert "24.7 15.9% compiler #pt2 within at most 60 s" in text
    assert "4.2 2.7% capacity within at most 10%" in text
