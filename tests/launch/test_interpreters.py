"""Environments apart: each kind of job runs by the interpreter of its own environment."""

from __future__ import annotations

import sys

import pytest

from trainer.launch.interpreters import JobEnvironment, interpreter_of

APART = {
    "ETT_PYTHON_DATA": "/data/python",
    "ETT_PYTHON_TRAINER": "/trainer/python",
    "ETT_PYTHON_PUBLISHER": "/publisher/python",
}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("trainer.dpp.check", "/data/python"),
        ("trainer.dpp.prepare", "/data/python"),
        ("trainer", "/trainer/python"),
        ("publish", "/publisher/python"),
        ("publish.registry", "/publisher/python"),
    ],
)
def test_a_job_s_module_names_its_environment(module: str, expected: str) -> None:
    assert interpreter_of(module, APART) == expected


def test_an_environment_without_a_variable_is_the_submitter_s() -> None:
    assert interpreter_of("trainer", {"ETT_PYTHON_DATA": "/data/python"}) == sys.executable
    assert interpreter_of("trainer", {"ETT_PYTHON_TRAINER": ""}) == sys.executable


def test_every_environment_has_a_variable_of_its_own() -> None:
    assert {each.variable for each in JobEnvironment} == set(APART)
