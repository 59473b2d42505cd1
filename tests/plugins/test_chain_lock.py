"""One run of a refresh holds the chain's lock, until it has trained or nothing of it is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from ett_airflow.chain_lock import ChainLock, Holder
from ett_airflow.operators import airflow_run
from ett_airflow.resolution import resolve

from tests.plugins.conftest import SPEC_PATH, context_of, wait_until
from trainer.launch import JobKey, JobRequest
from trainer.launch.job_folder import register
from trainer.launch.local import LocalLauncher
from trainer.run_folder import RunFolder
from trainer.spec import load_spec


def holder(run: str) -> Holder:
    return Holder(dag_id="tiny", run_id=run, run=run)


def everybody_runs(dag_id: str, run_id: str) -> bool:
    return True


def nobody_runs(dag_id: str, run_id: str) -> bool:
    return False


def test_one_has_it_until_it_lets_go(home: Path) -> None:
    lock = ChainLock("tiny")
    assert lock.take(holder("a"), everybody_runs) is None
    assert lock.take(holder("a"), everybody_runs) is None
    other = lock.take(holder("b"), everybody_runs)
    assert other is not None
    assert other.run_id == "a"
    lock.release(holder("b"))  # not its own
    assert lock.take(holder("b"), everybody_runs) is not None
    lock.release(holder("a"))
    assert lock.take(holder("b"), everybody_runs) is None


def test_a_run_that_is_over_holds_nobody_up(home: Path) -> None:
    lock = ChainLock("tiny")
    lock.take(holder("a"), everybody_runs)
    assert lock.take(holder("b"), nobody_runs) is None


def test_a_job_that_outlives_its_run_keeps_the_lock(home: Path) -> None:
    resolve(load_spec(SPEC_PATH), airflow_run(context_of("a")))
    lock, launcher = ChainLock("tiny"), LocalLauncher()
    lock.take(holder("a"), everybody_runs)
    key = JobKey(refresh="tiny", run="a", task="train")
    request = JobRequest(key=key, command=("behave", "0:beat:30"), run_folder=RunFolder.of("tiny", "a"), grace_s=1.0)
    handle = launcher.submit(request)
    assert lock.take(holder("b"), nobody_runs) is not None
    launcher.cancel(handle)
    wait_until(lambda: launcher.describe(handle).terminal, "the job is not cancelled")
    assert lock.take(holder("b"), nobody_runs) is None


def test_a_job_that_a_run_registered_and_never_started_holds_nobody_up(home: Path) -> None:
    resolve(load_spec(SPEC_PATH), airflow_run(context_of("a")))
    lock = ChainLock("tiny")
    lock.take(holder("a"), everybody_runs)
    key = JobKey(refresh="tiny", run="a", task="train")
    request = JobRequest(key=key, command=("behave", "0:beat:30"), run_folder=RunFolder.of("tiny", "a"))
    register(request, prepare=lambda job, submitted_ns: None)
    assert lock.take(holder("b"), nobody_runs) is None


def test_of_many_that_come_at_once_one_gets_it(home: Path) -> None:
    lock = ChainLock("tiny")
    lock.take(holder("dead"), everybody_runs)
    others, ready = [], threading.Barrier(8)

    def run_of_the_living(dag_id: str, run_id: str) -> bool:
        return run_id != "dead"

    def come(name: str) -> None:
        ready.wait()
        others.append(lock.take(holder(name), run_of_the_living))

    threads = [threading.Thread(target=come, args=(f"run-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others.count(None) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 99}', '{"version": 1, "owner": "x"}'])
def test_a_damaged_file_is_nobody_s_lock(home: Path, content: str) -> None:
    path = home / "runs" / "tiny" / "chain.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert ChainLock("tiny").holder() is None
    assert ChainLock("tiny").take(holder("a"), everybody_runs) is None
