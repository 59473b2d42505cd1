"""The pages as a person meets them: a real Airflow, a real browser, from the form to the owner of a breach."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.e2e.conftest import SPECS, RealAirflow, Refresh, day, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="Debian packages chromium and chromium-driver"),
]

WATCHED = "watched"
LEVELS = """
service_levels:
  scheduling: {share: 0.9}
  trainer_init: {seconds: 0.1}
"""
OWNERS = "  trainer_init: {team: training-platform, contact: '#training'}\n"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def watched(airflow: RealAirflow) -> str:
    """A refresh whose trainer may take a tenth of a second to start: it breaks that, and somebody owns it."""
    text = (SPECS / "tiny.yaml").read_text().replace("name: tiny", f"name: {WATCHED}")
    (airflow.specs / "watched.yaml").write_text(text + OWNERS + LEVELS)

    def parsed() -> bool:
        return any(dag["dag_id"] == WATCHED for dag in airflow.api.get("/dags")["dags"])

    wait_until(parsed, lambda: f"no DAG: {airflow.api.get('/importErrors')}")
    airflow.api.patch(f"/dags/{WATCHED}", {"is_paused": False})
    return WATCHED


@pytest.fixture(scope="module")
def browser(airflow: RealAirflow) -> Iterator[Any]:
    from ett_airflow.stack.screenshot import _browser, _sign_in

    driver = _browser()
    driver.set_window_size(1400, 1000)
    _sign_in(driver, airflow.server)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def ended(airflow: RealAirflow, watched: str, browser: Any) -> str:
    """The id of a run that was triggered from the form, and watched until its page showed the report."""
    _trigger_from_the_form(browser, airflow, watched)
    run_id = _newest_run(airflow, watched)
    _watch_until_the_report(browser, airflow, run_id)
    return run_id


def test_a_refresh_triggered_from_the_form_moves_its_page_until_the_report_is_there(ended: str) -> None:
    """The whole walk is the fixture's, which the other tests start from."""
    assert ended


def test_a_breach_in_the_list_leads_to_its_owner(airflow: RealAirflow, browser: Any, ended: str) -> None:
    browser.get(f"{airflow.server.url}/plugin/ett-refreshes")
    with Frame(browser) as frame:
        frame.until(lambda: "training-platform" in frame.text, "the owner of the breach is not in the list")
        assert "#training" in frame.text
        link = browser.find_element("css selector", "a[href*='#breach-trainer_init']")
        browser.execute_script("arguments[0].click()", link)
        frame.until(lambda: frame.asks("return !!document.querySelector('li:target')"), "the breach is not on the page")
        told = "return document.querySelector('li:target').textContent"  # all of it, drawn or not yet
        frame.until(lambda: "Owner: training-platform (#training)" in frame.asks(told), "its owner is not told")
        assert "Trainer initialization took" in frame.asks(told)
        assert ended in frame.asks("return new URL(location.href).searchParams.get('run_id')")


def test_a_task_s_tab_shows_its_own_share(airflow: RealAirflow, browser: Any, ended: str) -> None:
    browser.get(f"{airflow.server.url}/dags/{WATCHED}/runs/{ended}/tasks/train/plugin/ett-task")
    with Frame(browser) as frame:
        frame.until(lambda: "Where its seconds went" in frame.text, "no share of the task")
        assert "deferred: waits without a worker" in frame.text
        assert "training-platform" in frame.text


def test_a_page_in_airflow_is_as_light_or_dark_as_airflow_is(airflow: RealAirflow, browser: Any, ended: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    browser.get(f"{airflow.server.url}/dags/{WATCHED}/runs/{ended}/plugin/ett")
    _choose(browser, "dark")
    with Frame(browser) as frame:
        frame.until(lambda: "Lifecycle" in frame.text, "no report")
        for mode in ("dark", "light", "dark"):
            browser.switch_to.default_content()
            _choose(browser, mode)
            frame.enter()
            frame.until(lambda mode=mode: frame.asks("return document.documentElement.dataset.theme") == mode, mode)  # type: ignore[misc]
            assert frame.asks(POOR_CONTRAST) == [], mode
            behind = frame.asks("return getComputedStyle(document.body).backgroundColor")
            browser.switch_to.default_content()
            airflows = browser.execute_script(
                "return getComputedStyle(document.documentElement).getPropertyValue('--chakra-colors-bg')"
            )
            assert browser.execute_script(SAME_COLOUR, behind, airflows), (behind, airflows)
            frame.enter()


@pytest.mark.parametrize("width", [380, 1400])
def test_no_page_scrolls_sideways_or_asks_for_what_its_policy_forbids(
    airflow: RealAirflow, browser: Any, ended: str, width: int
) -> None:
    browser.get_log("browser")
    run = urlencode({"dag_id": WATCHED, "run_id": ended})
    for page in ("refreshes", f"run?{run}", f"task?{run}&task_id=train", f"compare?{run}"):
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"{airflow.server.url}/ett/{page}")
        overhang = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(overhang) <= 0, page
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [entry["message"] for entry in browser.get_log("browser")] == []


class Frame:
    """The plugin's iframe in the page of Airflow that is open."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def __enter__(self) -> Frame:
        self.until(lambda: self.browser.find_elements("css selector", "iframe"), "no iframe")
        self.enter()
        self.until(lambda: self.asks("return location.href") != "about:blank" and self.text, "the iframe stays empty")
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.switch_to.default_content()

    def enter(self) -> None:
        self.browser.switch_to.frame(self.browser.find_element("css selector", "iframe"))

    @property
    def text(self) -> str:
        return str(self.asks("return document.body ? document.body.innerText : ''"))

    def asks(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def until(self, condition: Callable[[], object], complaint: str) -> None:
        wait_until(condition, lambda: complaint, PATIENCE_S)


def _trigger_from_the_form(browser: Any, airflow: RealAirflow, dag_id: str) -> None:
    browser.get(f"{airflow.server.url}/dags/{dag_id}")
    _press(browser, "//button[normalize-space()='Trigger']")
    field = "//input[@name='element_window_start' or @id='element_window_start']"
    wait_until(lambda: browser.find_elements("xpath", field), lambda: "no field for the first day", PATIENCE_S)
    browser.execute_script(FILL, browser.find_element("xpath", field), day(4))
    _press(browser, "//*[@role='dialog']//button[normalize-space()='Trigger']")


def _press(browser: Any, xpath: str) -> None:
    def pressed() -> bool:
        for button in browser.find_elements("xpath", xpath):
            if button.is_displayed() and button.is_enabled():
                button.click()
                return True
        return False

    wait_until(pressed, lambda: f"nothing to press at {xpath}", PATIENCE_S)


def _newest_run(airflow: RealAirflow, dag_id: str) -> str:
    def runs() -> list[dict[str, Any]]:
        return list(airflow.api.get(f"/dags/{dag_id}/dagRuns", order_by="-id", limit=1)["dag_runs"])

    wait_until(runs, lambda: "the form triggered nothing", PATIENCE_S)
    return str(runs()[0]["dag_run_id"])


def _watch_until_the_report(browser: Any, airflow: RealAirflow, run_id: str) -> None:
    browser.get(f"{airflow.server.url}/dags/{WATCHED}/runs/{run_id}/plugin/ett")
    run = Watched(airflow, run_id)
    with Frame(browser) as frame:
        frame.asks("window.first = performance.timeOrigin")
        seen: set[str] = set()
        beside: list[bool] = []

        def ended() -> bool:
            live = frame.asks(
                "return !!document.getElementById('live-ett') && !!document.querySelector('#report #h-answer')"
            )
            beside.append(bool(live))
            seen.add(str(frame.asks("return document.getElementById('live-samples')?.innerText ?? ''")))
            return bool(
                frame.asks(
                    "return !!document.querySelector('#report #h-answer') && !document.getElementById('live-ett')"
                )
            )

        wait_until(ended, lambda: f"no report; {run.tasks()}; the page says: {frame.text[:500]}", 420)
        assert any(beside), "the report so far never took the place of the page from before there was a job"
        assert len(seen - {"", "0"}) >= 2, f"the samples on the page did not move: {seen}"
        assert frame.asks("return window.first === performance.timeOrigin"), "the page was loaded again"
    assert run.state == "success", run.tasks()


class Watched(Refresh):
    """A run of the watched refresh."""

    @property
    def state(self) -> str:
        return str(self.airflow.api.dag_run(WATCHED, self.run_id)["state"])

    def tasks(self) -> dict[str, str | None]:
        found = self.airflow.api.task_instances(WATCHED, self.run_id)
        return {each["task_id"]: each["state"] for each in found}


def _choose(browser: Any, mode: str) -> None:
    """As Airflow's own switch does: what it keeps, and what it writes on its page."""
    browser.execute_script(
        "localStorage.theme = arguments[0]; const page = document.documentElement;"
        "page.classList.remove('dark', 'light'); page.classList.add(arguments[0]);"
        "page.style.colorScheme = arguments[0];",
        mode,
    )
    time.sleep(0.1)  # Chakra's variables follow the class with the next frame


FILL = """
const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
set.call(arguments[0], arguments[1]);
arguments[0].dispatchEvent(new Event('input', {bubbles: true}));
arguments[0].dispatchEvent(new Event('change', {bubbles: true}));
"""

_PAINTED = """
const dot = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const rgba = colour => {
  dot.clearRect(0, 0, 1, 1); dot.fillStyle = colour; dot.fillRect(0, 0, 1, 1);
  const p = dot.getImageData(0, 0, 1, 1).data; return [p[0], p[1], p[2], p[3] / 255];
};
"""

SAME_COLOUR = _PAINTED + "return rgba(arguments[0].trim()).join() === rgba(arguments[1].trim()).join();"

POOR_CONTRAST = (
    _PAINTED
    + """
const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
const behind = element => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const poor = [];
for (const element of document.querySelectorAll('body *:not(svg *)')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest('svg, script, option')) continue;
  const back = behind(element), ink = over(rgba(getComputedStyle(element).color), back);
  const [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
  const ratio = (high + 0.05) / (low + 0.05);
  const name = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}`;
  if (ratio < 4.5) poor.push(`${name}: ${ratio.toFixed(2)}`);
}
return poor;
"""
)
