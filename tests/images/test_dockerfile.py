"""docker/Dockerfile keeps the environments apart; `make images` runs its steps in a clean Debian."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

import pytest
import yaml
from chroot_build import CHECKS
from dockerfile import Instruction, assignments, expanded, stages

REPOSITORY = Path(__file__).parents[2]
STAGES = stages(REPOSITORY / "docker" / "Dockerfile")


def installed_extras(target: str) -> set[str]:
    """The extras in the environments that a target copies."""
    copied = [step.words()[0] for step in STAGES[target].instructions if step.name == "COPY"]
    environments = {word.removeprefix("--from=") for word in copied if word.endswith("-environment")}
    steps = [step for name in environments for step in STAGES[name].instructions if step.name == "RUN"]
    return {extra for step in steps for extra in step.words()[2:]}


@pytest.mark.parametrize(
    ("target", "extras"),
    [
        ("control", {"control", "reports"}),
        ("data", {"data"}),
        ("trainer", {"trainer"}),
        ("publisher", {"publish"}),
        ("machine", {"control", "reports", "data", "trainer", "publish"}),
    ],
)
def test_an_image_holds_the_extras_of_its_plane_alone(target: str, extras: set[str]) -> None:
    known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert installed_extras(target) == extras <= set(known)
    assert target in CHECKS


def test_images_do_not_run_as_root() -> None:
    for target in CHECKS:
        assert [step.text for step in STAGES[target].instructions if step.name == "USER"] == ["10001"], target


def test_what_is_copied_exists_and_passes_the_ignore_file() -> None:
    sources = {
        source.removeprefix("./")
        for stage in STAGES.values()
        for step in stage.instructions
        if step.name == "COPY" and not step.text.startswith("--from")
        for source in step.words()[:-1]
    }
    kept = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


def test_compose_builds_targets_that_exist_and_publishes_one_port_on_loopback() -> None:
    services = yaml.safe_load((REPOSITORY / "docker" / "compose.yaml").read_text())["services"]
    assert {each["build"]["target"] for each in services.values() if "build" in each} <= set(STAGES)
    assert [each["ports"] for each in services.values() if "ports" in each] == [["${ETT_BIND:-127.0.0.1}:8080:8080"]]


def test_a_step_is_read_as_a_builder_reads_it() -> None:
    assert Instruction("CMD", '["run", "a b"]').words() == ["run", "a b"]
    assert assignments('A=1 B="2 3"') == {"A": "1", "B": "2 3"}
    assert expanded("/x:$PATH ${A}b $NONE", {"PATH": "/bin", "A": "a"}) == "/x:/bin ab "
