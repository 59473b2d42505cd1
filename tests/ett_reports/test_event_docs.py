"""docs/event-log.md: its examples fit the published schema, it names all there is, and its log reduces as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ett_reports
from ett_reports.events import DERIVED_PHASES, SCHEMA_VERSION, Cause, Component, Kind, Phase, Point, Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from tests.ett_reports.story import SECOND, Story

SCHEMA = json.loads((Path(ett_reports.__file__).parent / "schema" / "event-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PAGE = (Path(__file__).parents[2] / "docs" / "event-log.md").read_text()
EXAMPLES = [line for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


def test_schema_is_itself_valid_and_of_the_codes_version() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    versions = {kind["properties"]["v"]["const"] for kind in SCHEMA["$defs"].values()}
    assert versions == {SCHEMA_VERSION} and set(SCHEMA["$defs"]) == set(Kind)


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: "{kind} {seq}".format(**{"seq": "", **json.loads(line)}))
def test_example_fits_the_schema(line: str) -> None:
    VALIDATOR.validate(json.loads(line))


def test_every_kind_has_an_example() -> None:
    assert {json.loads(line)["kind"] for line in EXAMPLES} == set(Kind)


@pytest.mark.parametrize("word", [*sorted(set(Phase) - DERIVED_PHASES), *Point, *Cause, *Source], ids=str)
def test_the_page_names_every_phase_point_cause_and_source(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_the_whole_log_of_the_page_reduces_as_it_says(tmp_path: Path) -> None:
    files = re.findall(r"`events/(\S+\.jsonl)`:\n\n```json\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) == 2
    for name, text in files:
        (tmp_path / "events" / name).parent.mkdir(parents=True)
        (tmp_path / "events" / name).write_text(text)
    log = read_log(tmp_path)
    assert log.quality.invalid_events == log.quality.missing_sequence == log.quality.unknown_points == 0
    report = reduce(log)
    assert report.ett is not None and f"ETT {100 * report.ett:.1f}%, 100 of 185 s" in PAGE
    spent = {component: report.l2[component] // SECOND for component in Component}
    assert spent == {
        Component.SCHEDULING: 20,
        Component.TRAINER_INIT: 30,
        Component.PT2_COMPILE: 30,
        Component.EFFECTIVE_TRAINING: 100,
        Component.WASTED_TRAINING: 0,
        Component.SHUTDOWN: 5,
        Component.UNATTRIBUTED: 0,
    }


def test_what_the_recorder_and_the_sweeper_write_fits_the_schema(tmp_path: Path) -> None:
    from ett_reports.shipping import Shipper

    story = Story(tmp_path / "local")
    story.submit(1, 0)
    trainer = story.trainer(1, 0).point("stream", planned_samples=100)
    with trainer.span(Phase.TRAIN_MODULE, until=5, size=3):
        pass
    with pytest.raises(RuntimeError), trainer.span(Phase.COMPILE, until=70):
        raise RuntimeError("no kernel")
    trainer.at(70).begin(0).steps(3, seconds=0.3, wait=0.1).steps(2)
    story.die(1, 200, "infrastructure")
    Shipper(tmp_path / "local", tmp_path / "events").sweep()
    story.launcher.recorder.close()
    lines = [line for file in sorted(tmp_path.rglob("*.jsonl")) for line in file.read_text().splitlines()]
    kinds: set[Any] = set()
    for line in lines:
        event = json.loads(line)
        VALIDATOR.validate(event)
        kinds.add(event["kind"])
    assert kinds == set(Kind)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"kind": "nap"},
        {"phase": "step"},
        {"end_ns": -1},
        {"start_ns": 1.5},
        {"waits_for": [None]},
        {"seq": None},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    span = next(json.loads(line) for line in EXAMPLES if json.loads(line)["kind"] == "span")
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(span | change)
