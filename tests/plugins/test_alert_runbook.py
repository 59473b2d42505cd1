"""The runbook has a section for whatever an alert can name, and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ett_airflow.alert_failure import FailureClass
from ett_airflow.alert_message import RUNBOOK

from ett_reports.events import Cause
from tests.plugins.conftest import REPOSITORY, SPEC_PATH
from trainer.spec import Retention, load_spec

PAGE = (REPOSITORY / RUNBOOK).read_text(encoding="utf-8")
MODULES = {
    "trainer.launch": ("list", "logs", "describe", "cancel"),
    "ett_reports": ("run", "watch", "compare", "interval"),
    "publish.registry": ("list", "live"),
    "publish.predict": (),
    "ett_airflow.housekeeping": (),
    "trainer.stage_file": (),
}


def anchors() -> set[str]:
    """The fragments that a rendered page has."""
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_failure_class_and_every_alert_has_its_section() -> None:
    named = {str(each) for each in FailureClass} | {"a-service-level-broke", "freshness-deadline"}
    assert named <= anchors()
    assert {str(cause) for cause in Cause} <= {str(each) for each in FailureClass}


def test_sections_that_are_linked_to_exist() -> None:
    assert set(re.findall(r"\]\(#([a-z-]+)\)", PAGE)) <= anchors()
    for page in re.findall(r"\]\(([a-z-]+\.md)\)", PAGE):
        assert (REPOSITORY / "docs" / page).is_file(), page


def test_the_retention_table_has_every_field_with_its_default() -> None:
    table = dict(re.findall(r"^\| `([a-z_`, ]+)` \| ([a-z0-9, ]+) \|", PAGE, re.MULTILINE))
    del table["retention"]  # the heading
    told = {}
    for names, values in table.items():
        fields = re.findall(r"[a-z_]+", names)
        told |= dict(zip(fields, values.split(", "), strict=True))
    assert told == {name: f"{value:g}" if type(value) is float else str(value).lower() for name, value in Retention()}


def test_the_spec_that_it_shows_is_valid(tmp_path: Path) -> None:
    shown = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert shown
    spec = yaml.safe_load(SPEC_PATH.read_text()) | yaml.safe_load(shown[1])
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump(spec))
    assert len(load_spec(path).alerts.notifiers) == 2


def test_no_command_is_named_that_is_not_checked_here() -> None:
    named = re.findall(r"python -m ([a-z_.]+)(?: ([a-z]+)\b)?", PAGE)
    for module, command in named:
        assert module in MODULES
        assert not command or command in MODULES[module], (module, command)


@pytest.mark.parametrize("module", MODULES)
def test_the_commands_exist(module: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}", "ETT_HOME": str(tmp_path)}
    call = [sys.executable, "-W", "ignore", "-m", module, "--help"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, cwd=REPOSITORY)
    told = done.stdout + done.stderr
    assert "No module named" not in told
    for command in MODULES[module]:
        assert re.search(rf"\b{command}\b", told), told
