"""Waits before a run begins: over when their time has come, and told about meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ett_airflow import waiting
from ett_airflow.chain_lock import ChainLock, Holder
from ett_airflow.partitions import LANDING_MARKER
from ett_airflow.waiting import LandingTrigger, TurnTrigger, WaitTrigger

from tests.plugins.conftest import Said


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SHORTEST_S", 0.0)
    monkeypatch.setattr(waiting, "_ASK_S", 0.0)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Runs that go on in Airflow."""
    runs: set[str] = set()
    monkeypatch.setattr(waiting, "runs_in_airflow", lambda dag_id, run_id: run_id in runs)
    return runs


async def fired(trigger: WaitTrigger) -> bool:
    async for _ in trigger.run():
        return True
    return False


def over_after(trigger: WaitTrigger, act: Any) -> None:
    """The wait is not over before `act`, and is after it."""

    async def story() -> None:
        wait = asyncio.create_task(fired(trigger))
        await asyncio.sleep(0.3)
        assert not wait.done()
        act()
        assert await asyncio.wait_for(wait, 20)

    asyncio.run(story())


def land(root: Path, day: str) -> None:
    folder = root / f"day={day}"
    folder.mkdir(parents=True)
    (folder / LANDING_MARKER).write_text(json.dumps({"closed": None}))


@pytest.mark.parametrize(
    "trigger",
    [
        TurnTrigger(dag_id="tiny", run_id="b", earlier="a", poll_s=1.5),
        LandingTrigger(root="/data", days=["2026-11-28"], until_unix_s=7.5, poll_s=2.0),
    ],
)
def test_triggers_are_rebuilt_from_what_they_serialize(trigger: WaitTrigger) -> None:
    path, arguments = trigger.serialize()
    assert path == f"ett_airflow.waiting.{type(trigger).__name__}"
    assert type(trigger)(**json.loads(json.dumps(arguments))).serialize() == trigger.serialize()


def test_a_day_is_waited_for_until_its_marker_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    monkeypatch.setattr(LandingTrigger, "log", said)
    land(tmp_path, "2026-11-27")
    days = ["2026-11-27", "2026-11-28"]
    trigger = LandingTrigger(root=str(tmp_path), days=days, until_unix_s=time.time() + 60, poll_s=0.02)
    over_after(trigger, lambda: land(tmp_path, "2026-11-28"))
    assert said[0].startswith(f"waiting: 2026-11-28 to land in {tmp_path}, for up to ")


def test_the_wait_for_a_day_has_an_end(tmp_path: Path) -> None:
    trigger = LandingTrigger(root=str(tmp_path), days=["2026-11-28"], until_unix_s=time.time() + 0.1, poll_s=0.02)
    assert asyncio.run(asyncio.wait_for(fired(trigger), 20))


def test_a_turn_comes_when_the_holder_lets_go(home: Path, running: set[str]) -> None:
    running.add("a")
    holder = Holder(dag_id="tiny", run_id="a", run="a")
    ChainLock("tiny").take(holder, lambda *_: True)
    trigger = TurnTrigger(dag_id="tiny", run_id="b", poll_s=0.02)
    over_after(trigger, lambda: ChainLock("tiny").release(holder))


def test_a_turn_comes_when_the_holder_s_run_is_over(home: Path, running: set[str]) -> None:
    running.add("a")
    ChainLock("tiny").take(Holder(dag_id="tiny", run_id="a", run="a"), lambda *_: True)
    over_after(TurnTrigger(dag_id="tiny", run_id="b", poll_s=0.02), running.clear)


def test_a_turn_comes_when_the_run_of_an_earlier_day_is_over(home: Path, running: set[str]) -> None:
    running.add("a")
    over_after(TurnTrigger(dag_id="tiny", run_id="b", earlier="a", poll_s=0.02), running.clear)


def test_an_airflow_that_does_not_answer_is_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RuntimeError("the API server is away")] * 10)

    def asked(dag_id: str, run_id: str) -> bool:
        error = next(answers, None)
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(waiting, "runs_in_airflow", asked)
    ChainLock("tiny").take(Holder(dag_id="tiny", run_id="a", run="a"), lambda *_: True)
    assert asyncio.run(asyncio.wait_for(fired(TurnTrigger(dag_id="tiny", run_id="b", poll_s=0.02)), 20))
    assert next(answers, None) is None
