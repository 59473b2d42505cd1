"""The page in a real browser: nothing leaves it, nothing is refused in it, and it can be read in every light."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ett_reports.render.html import render_html
from ett_reports.report import JobReport
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import busy_job, failed_once_job, hostile_job, quiet_job, refresh_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="Debian packages chromium and chromium-driver"),
]

HOSTILE = (
    "</title></style><script>document.title='owned';alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"
)
POLICY = policy_from({"pt2_compile": {"team": "compiler", "contact": "#pt2"}}, {"pt2_compile": {"seconds": 60}})


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def write(tmp_path: Path, job: JobReport, title: str = "a run") -> Path:
    refresh = refresh_report()
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=POLICY))
    page = tmp_path / "ett.html"
    page.write_text(render_html(job, refresh, judgement, title=title, spec_summary={"model": title}))
    return page


def show(browser, page: Path, scheme: str = "light", width: int = 1240) -> None:  # type: ignore[no-untyped-def]
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    size = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(page.as_uri())


def requests(browser) -> set[str]:  # type: ignore[no-untyped-def]
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [quiet_job, failed_once_job, busy_job, lambda: hostile_job(HOSTILE)])
def test_no_request_no_error_no_violation_and_the_figures_are_there(browser, tmp_path, make, scheme) -> None:  # type: ignore[no-untyped-def]
    job = make()
    page = write(tmp_path, job, title=HOSTILE)
    show(browser, page, scheme)
    assert requests(browser) <= {page.as_uri(), "data:,"}
    assert browser.get_log("browser") == []
    assert "owned" not in browser.title.split("ETT")[0]
    assert browser.find_element("id", "ett").text == f"{100 * job.ett:.1f}%"
    shown = browser.find_element("tag name", "body").text
    assert "Cost the most" in shown and "Where the time went" in shown
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(background.removeprefix("rgb(").split(",")[0])
    assert red > 200 if scheme == "light" else red < 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser, tmp_path, scheme) -> None:  # type: ignore[no-untyped-def]
    show(browser, write(tmp_path, failed_once_job()), scheme)
    poor = browser.execute_script(CONTRAST)
    assert poor == []


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_the_page_itself_never_scrolls_sideways(browser, tmp_path, width) -> None:  # type: ignore[no-untyped-def]
    show(browser, write(tmp_path, hostile_job("x" * 400)), width=width)
    assert browser.execute_script(TOO_WIDE) == []


def test_it_prints_light_and_whole_in_dark_mode_too(browser, tmp_path) -> None:  # type: ignore[no-untyped-def]
    show(browser, write(tmp_path, failed_once_job()), "dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF-")
    assert 2 <= data.count(b"/Type /Page\n") <= 5


TOO_WIDE = """
const page = document.documentElement, wide = [];
if (page.scrollWidth <= page.clientWidth) return wide;
for (const element of document.querySelectorAll('body *'))
  if (element.getBoundingClientRect().right > page.clientWidth + 1 && !element.closest('.scroll, svg'))
    wide.push(`${element.tagName}.${element.className}`);
return [...new Set(wide)];
"""

CONTRAST = """
const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const rgba = text => { const p = text.match(/[\\d.]+/g).map(Number); return p.length < 4 ? [...p, 1] : p; };
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
const behind = element => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const poor = [];
for (const element of document.querySelectorAll('body *:not(svg *)')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest('svg')) continue;
  const style = getComputedStyle(element), back = behind(element);
  const ink = over(rgba(style.color).map((v, i) => i === 3 ? v * Number(style.opacity) : v), back);
  const [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
  const ratio = (high + 0.05) / (low + 0.05);
  const name = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}`;
  if (ratio < 4.5) poor.push(`${name}: ${ratio.toFixed(2)}`);
}
return poor;
"""
