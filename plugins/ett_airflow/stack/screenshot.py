"""Pictures of a run in Airflow's UI and of its ETT report, by Debian's chromium."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ett_airflow.stack.server import Server, StackError, running_server
from ett_airflow.stack.settings import StackHome

WIDTH, HEIGHT = 1400, 900
_SETTLE_S = 30.0


def screenshot(dag_id: str, run_id: str, out: Path) -> int:
    """Write `airflow-run.png` and `airflow-ett.png` into `out`; needs `make up`, selenium and chromium."""
    server = running_server(StackHome.default())
    if server is None:
        raise StackError("Airflow is not running; `make up` starts it")
    server.api.dag_run(dag_id, run_id)  # says so if there is no such run
    out.mkdir(parents=True, exist_ok=True)
    run = f"/dags/{quote(dag_id)}/runs/{quote(run_id)}"
    browser = _browser()
    try:
        _sign_in(browser, server)
        _picture(browser, f"{server.url}{run}", "report", out / "airflow-run.png")
        _picture(browser, f"{server.url}{run}/plugin/ett", "ETT", out / "airflow-ett.png")
    finally:
        browser.quit()
    return 0


def _browser() -> Any:
    try:
        from selenium import webdriver
    except ImportError as error:
        raise StackError("selenium is missing: install the extra `dev`") from error
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise StackError("chromium is missing: `apt-get install chromium chromium-driver`")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def _sign_in(browser: Any, server: Server) -> None:
    browser.get(f"{server.url}/auth/login")
    browser.add_cookie({"name": "_token", "value": server.api.token, "path": "/"})


def _picture(browser: Any, url: str, shows: str, path: Path) -> None:
    """Load `url`, wait until the text `shows` is there and the page has come to rest, and take it."""
    browser.get(url)
    deadline = time.monotonic() + _SETTLE_S
    while shows not in browser.find_element("tag name", "body").text:
        if time.monotonic() > deadline:
            raise StackError(f"{url} does not show {shows!r} within {_SETTLE_S:.0f} s")
        time.sleep(0.5)
    time.sleep(3)
    browser.save_screenshot(str(path))
    print(path)
