"""The job model: values that survive JSON, names that fit every scheduler, requests that are refused."""

from __future__ import annotations

import doctest
import json
import re
from types import ModuleType

import pytest

import trainer.launch.__main__ as terminal_module
import trainer.launch.jobs as jobs_module
import trainer.launch.outcome as outcome_module
from ett_reports.events import Cause
from trainer.launch import (
    InvalidRequestError,
    JobHandle,
    JobKey,
    JobRequest,
    JobState,
    JobStatus,
    RankStatus,
    Resources,
    UnknownSchedulerError,
    launcher_for,
)
from trainer.run_folder import RunFolder

KEY = JobKey(refresh="movies", run="2026-11-28", task="train", attempt=2)


def test_names_are_valid_for_slurm_and_kubernetes() -> None:
    long = JobKey(refresh="R" * 80, run="scheduled__2026-11-28T03:00:00+00:00", task="check_schema", attempt=12)
    for key in (KEY, long):
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", key.name)
    assert long.name.count("check-schema-a12") == 1


def test_keys_that_look_alike_have_different_names() -> None:
    same_slug = [JobKey(refresh="a-b", run="c", task="t"), JobKey(refresh="a", run="b-c", task="t")]
    assert len({key.name for key in same_slug}) == 2


def test_values_survive_json() -> None:
    request = JobRequest(
        key=KEY,
        command=("trainer", "--flag", "$HOME"),
        run_folder=RunFolder.of("movies", "2026-11-28"),
        replicas=2,
        devices=2,
        resources=Resources(cpus=2, memory_mb=4096),
        env={"A": "b"},
        hang_timeout_s=60.0,
    )
    status = JobStatus(
        state=JobState.FAILED,
        attempt=2,
        exit_code=-9,
        cause=Cause.INFRASTRUCTURE,
        ranks=(RankStatus(rank=0, pid=1, pid_started=1.5, exit_code=-9, ended_ns=7),),
    )
    handle = JobHandle("local", KEY.name, "/runs/movies/2026-11-28")
    assert JobRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request
    assert JobStatus.from_dict(json.loads(json.dumps(status.to_dict()))) == status
    assert JobHandle.from_dict(json.loads(json.dumps(handle.to_dict()))) == handle
    assert JobHandle.parse(str(handle)) == handle


@pytest.mark.parametrize("fields", [{"replicas": 0}, {"devices": -1}, {"command": ()}, {"hang_timeout_s": 0}])
def test_requests_that_cannot_run_are_refused(fields: dict[str, object]) -> None:
    valid = {"key": KEY, "command": ("trainer",), "run_folder": RunFolder.of("movies", "1")}
    with pytest.raises(InvalidRequestError):
        JobRequest(**{**valid, **fields})


def test_a_request_of_another_release_is_not_guessed_at() -> None:
    record = JobRequest(key=KEY, command=("trainer",), run_folder=RunFolder.of("movies", "1")).to_dict()
    with pytest.raises(InvalidRequestError, match="version 99"):
        JobRequest.from_dict({**record, "version": 99})


@pytest.mark.parametrize("module", [jobs_module, outcome_module, terminal_module])
def test_examples_in_the_docs(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_an_unknown_scheduler_names_the_known_ones() -> None:
    with pytest.raises(UnknownSchedulerError, match="local"):
        launcher_for("cloud")
