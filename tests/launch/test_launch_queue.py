"""Capacity: who waits, who is next, and that slots come back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from trainer.launch import CapacityError, JobState, Resources
from trainer.launch.capacity import Line, Pool
from trainer.launch.errors import InvalidRequestError
from trainer.launch.rendezvous import reserve_port


def line(root: Path, owner: str, wanted: int, *, at: int = 0) -> Line:
    return Line(root, pool=Pool("cpu", ("0", "1", "2")), wanted=wanted, owner=owner, submitted_ns=at)


def test_first_come_first_served_even_for_the_big_one(tmp_path: Path) -> None:
    running = line(tmp_path, "running", 2).try_allocate()
    big, small = line(tmp_path, "big", 3, at=1), line(tmp_path, "small", 1, at=2)
    assert big.try_allocate() is None
    assert small.try_allocate() is None  # one slot is free, but it is not its turn
    running.release()
    held = big.try_allocate()
    assert held.devices == ("0", "1", "2")
    assert small.try_allocate() is None
    held.release()
    assert small.try_allocate().devices == ("0",)


def test_leaving_the_line_lets_the_next_through(tmp_path: Path) -> None:
    held = line(tmp_path, "running", 3).try_allocate()
    first, second = line(tmp_path, "first", 3, at=1), line(tmp_path, "second", 1, at=2)
    assert first.try_allocate() is None and second.try_allocate() is None
    first.leave()
    held.release()
    assert second.try_allocate().devices == ("0",)


def test_jobs_without_devices_do_not_queue(tmp_path: Path) -> None:
    assert line(tmp_path, "running", 3).try_allocate() is not None
    assert line(tmp_path, "cpu-job", 0).try_allocate().devices == ()


def test_gpus_are_lent_by_the_names_that_the_job_sees(jobs) -> None:
    request = jobs.request("x", replicas=2, resources=Resources(gpus=1))
    environment = {"CUDA_VISIBLE_DEVICES": "3,MIG-a,5"}
    assert Pool.for_request(request, environment).devices == ("3", "MIG-a", "5")
    assert Pool.for_request(request, {**environment, "ETT_LOCAL_SLOTS": "2"}).devices == ("3", "MIG-a")
    with pytest.raises(InvalidRequestError, match="ETT_LOCAL_SLOTS"):
        Pool.for_request(request, {"ETT_LOCAL_SLOTS": "many"})


def test_ports_are_distinct_and_free() -> None:
    first = reserve_port("job")
    second = reserve_port("job")
    assert first.number != second.number
    first.release()
    with socket.socket() as taken:
        taken.bind(("", first.number))
        third = reserve_port("job")
        assert third.number not in (first.number, second.number)
    for port in (second, third):
        port.release()


def test_a_job_of_the_same_name_under_another_home_gets_another_port() -> None:
    """Its ranks bind the port seconds after it was chosen; until then only the claim tells."""
    job = f"job-{os.getpid()}"
    script = "import sys; from trainer.launch.rendezvous import reserve_port; port = reserve_port(sys.argv[1]); "
    script += "print(port.number, flush=True); input()"
    command = [sys.executable, "-c", script, job]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    taken = int(other.stdout.readline())
    mine = reserve_port(job)
    other.kill()
    other.communicate()
    assert mine.number != taken
    mine.release()
    again = reserve_port(job)  # a claim ends with its process
    assert again.number == taken
    again.release()


def test_a_job_that_never_fits_is_refused(jobs) -> None:
    with pytest.raises(CapacityError, match="asks for 5 devices and this host offers 4"):
        jobs.submit("*:exit:0", devices=5)
    assert jobs.launcher.find(jobs.request("x").key) is None


def test_jobs_queue_for_devices_and_cancel_while_they_wait(jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_LOCAL_SLOTS", "2")
    first = jobs.submit("*:sleep:60", task="first", devices=2)
    jobs.state(first, JobState.RUNNING)
    second = jobs.submit("*:exit:0", task="second", devices=2)
    third = jobs.submit("*:exit:0", task="third", devices=1)
    jobs.until(lambda: "waits for 2" in jobs.launcher.describe(second).message, "second does not queue")
    assert jobs.launcher.describe(third).state is JobState.PENDING
    assert jobs.run("*:exit:0", task="cpu").state is JobState.SUCCEEDED  # asks for none
    assert [name for name in jobs.point_names() if name == "submitted"] == ["submitted"] * 3

    jobs.launcher.cancel(third)
    assert jobs.end(third).state is JobState.CANCELLED
    assert jobs.launcher.describe(third).started_ns is None
    psutil.Process(jobs.supervisor_pid(first)).send_signal(signal.SIGKILL)
    assert jobs.end(second).state is JobState.SUCCEEDED
