"""docs/metric.md says what the code does: components and phases, service levels, the interval's advice, Fig. 3."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from ett_reports.__main__ import main
from ett_reports.commands import COMMANDS
from ett_reports.events import COMPONENT_OF, NOT_A_FAULT, Component
from ett_reports.slo import Owned, policy_from

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metric.md").read_text()


@pytest.mark.parametrize("component", [one for one in Component if one is not Component.UNATTRIBUTED], ids=str)
def test_every_component_is_listed_with_its_phases(component: Component) -> None:
    phases = ", ".join(phase.value for phase, owner in COMPONENT_OF.items() if owner is component)
    assert f"| {component.value} | {phases} |" in PAGE


def test_causes_that_are_no_faults_are_named() -> None:
    assert all(f"`{cause.value}`" in PAGE for cause in NOT_A_FAULT)


def test_service_levels_of_the_page_are_a_policy() -> None:
    block = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    given = json.loads(block[1])
    policy = policy_from(given["owners"], given["service_levels"])
    assert policy.owners[Owned.TRAINER_INIT].team == "training infrastructure"


def test_every_command_is_described() -> None:
    assert all(f"`{command}" in PAGE for command in COMMANDS)


def test_interval_prints_what_the_page_shows_and_draws_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.search(r"\$ python -m ett_reports (interval .*?)\n(Save .*?)```", PAGE, re.DOTALL)
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(shown[1].replace("\\\n", " "))) == 0
    assert capsys.readouterr().out == shown[2]
    assert (tmp_path / "checkpoint-interval.svg").read_text() == (DOCS / "pictures/checkpoint-interval.svg").read_text()


@pytest.mark.parametrize("page", ["metric.md", "event-log.md"])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (DOCS / page).read_text())
    assert links and all((DOCS / link).exists() for link in links if "://" not in link)
