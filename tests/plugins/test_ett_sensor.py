"""What the ETT task says of a run, and which colour it has: green only with every source at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from ett_airflow import ett_sensor
from ett_airflow.airflow_api import AirflowApiError
from ett_airflow.ett_sensor import EttSensor
from ett_airflow.generation import RunIdentity
from ett_airflow.operators import airflow_run
from ett_airflow.resolution import resolve
from ett_airflow.stamps import Stamps

from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from tests.plugins.conftest import SPEC_PATH, Said, context_of, wait_until
from trainer.launch import JobHandle, JobKey, JobRequest
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder
from trainer.spec import load_spec, with_overrides

MODULES = Path(__file__).parent / "modules"
GOAL = {"service_levels": {"effective_training": {"share": 1.0}}, "owners": {"effective_training": {"team": "models"}}}


@pytest.fixture
def trained(home: Path, outside_airflow: None, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose training job is done, with an ETT goal that it cannot have met."""
    import os

    monkeypatch.setenv("PYTHONPATH", f"{MODULES}:{os.environ['PYTHONPATH']}")
    resolve(with_overrides(load_spec(SPEC_PATH), GOAL), airflow_run(context_of()))
    folder = RunFolder.of("tiny", "by-hand")
    launcher = LocalLauncher()
    handle = launcher.submit(request(folder, "1:100:0"))
    wait_until(lambda: launcher.describe(handle).terminal, "the job does not end")
    return folder


def request(folder: RunFolder, *steps: str) -> JobRequest:
    key = JobKey(refresh="tiny", run=folder.run, task="train")
    return JobRequest(key=key, command=("tiny_job", *steps), run_folder=folder, devices=1, grace_s=1.0)


def airflow_knows(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What joining Airflow's record leaves in the log: the run, and a try of this very task."""

    def join(run: Any, context: Any) -> bool:
        identity = ProcessIdentity(job=folder.job, source=Source.AIRFLOW, process="airflow-rest-1")
        with Recorder(folder.events_dir, identity) as recorder:
            recorder.point(Point.DAG_RUN, queued=1, start=2, state="running", run_type="manual")
            recorder.point(Point.TASK_TRY, task="ett", try_number=1, state="running", scheduled=3, queued=4, start=5)
        return True

    monkeypatch.setattr(ett_sensor, "join_airflow", join)


def test_a_measured_run_is_green_and_gives_its_headline_and_its_breaches(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said()
    monkeypatch.setattr(EttSensor, "log", said)
    airflow_knows(trained, monkeypatch)
    context = context_of()
    headline = EttSensor(task_id="ett").execute(context=context)
    assert context["ti"].pushed == {"headline": headline}
    assert 0 < headline["ett"] < 1
    assert headline["degraded"] == []
    assert "ett" in headline["tasks"]
    (breach,) = headline["breaches"]
    assert (breach["component"], breach["owner"]) == ("effective_training", "models")
    assert any(line.startswith("service level of effective_training broken, owner models:") for line in said)
    assert any("ETT" in line and "%" in line for line in said)
    assert said[-1].startswith("ETT ")


def test_without_airflow_s_own_record_it_is_red_and_the_figures_are_there(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ett_sensor, "connected_api", lambda: None)
    context = context_of()
    with pytest.raises(AirflowFailException, match=r"degraded, ETT .* there is no Connection ett_airflow_api"):
        EttSensor(task_id="ett").execute(context=context)
    headline = context["ti"].pushed["headline"]
    assert headline["ett"] > 0
    assert "no Connection" in headline["degraded"][0]


def test_an_airflow_that_does_not_answer_is_asked_again_before_it_is_missing(
    trained: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(run: Any, context: Any) -> bool:
        raise AirflowApiError("GET /api/v2", "no usable answer: refused")

    monkeypatch.setattr(ett_sensor, "join_airflow", away)
    with pytest.raises(AirflowException, match="refused") as first:
        EttSensor(task_id="ett").execute(context=context_of(try_number=3))
    assert not isinstance(first.value, AirflowFailException)
    with pytest.raises(AirflowFailException, match=r"degraded, .*refused"):
        EttSensor(task_id="ett").execute(context=context_of(try_number=4))


def test_a_rank_that_left_nothing_makes_it_red(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow_knows(trained, monkeypatch)
    for path in trained.events_dir.glob("trainer-*"):
        path.rename(trained.root / path.name)
    with pytest.raises(AirflowFailException, match="attempt 1: no trainer events"):
        EttSensor(task_id="ett").execute(context=context_of())


def test_without_a_training_job_there_is_nothing_to_measure(home: Path, outside_airflow: None) -> None:
    with pytest.raises(AirflowSkipException, match="never decided"):
        EttSensor(task_id="ett").execute(context=context_of())
    resolve(load_spec(SPEC_PATH), airflow_run(context_of()))
    with pytest.raises(AirflowSkipException, match="no training job"):
        EttSensor(task_id="ett").execute(context=context_of())


def test_a_job_that_nobody_follows_is_ended_and_then_measured(
    home: Path, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from airflow.sdk.exceptions import TaskDeferred

    monkeypatch.setenv("PYTHONPATH", f"{MODULES}:{os.environ['PYTHONPATH']}")
    resolve(load_spec(SPEC_PATH), airflow_run(context_of()))
    launcher, folder = LocalLauncher(), RunIdentity("tiny", "by-hand").folder
    handle = launcher.submit(request(folder, "1:10:wait"))
    wait_until(lambda: list(folder.events_dir.glob("trainer-*")), "the job does not start")
    with pytest.raises(TaskDeferred) as waits:
        EttSensor(task_id="ett").execute(context=context_of())
    assert JobHandle.parse(waits.value.trigger.serialize()[1]["handle"]) == handle
    wait_until(lambda: launcher.describe(handle).terminal, "the job is not cancelled")
    airflow_knows(folder, monkeypatch)
    with Stamps(folder, task="ett", try_number=1):
        headline = EttSensor(task_id="ett").resume(context_of(), event={"status": {}})
    assert headline["nof"] == 1
