"""What a standby refuses, and when it leaves: the job then starts cold, and says why."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from trainer.launch import JobState
from trainer.launch.warmth import standby_place
from trainer.standby.environment_area import EnvironmentAreaError
from trainer.standby.identity import Identity
from trainer.standby.messages import Kind, MessageError, receive, send
from trainer.standby.place import PlaceError, Record, StandbyPlace, check_peer
from trainer.standby.preload import UnsafeForkError, check_forkable

pytestmark = pytest.mark.integration

IDLE_S = 60.0


def standby() -> Record:
    record = standby_place().record()
    assert record is not None
    return record


def gone(record: Record) -> bool:
    return record.process is None or record.process.status() == psutil.STATUS_ZOMBIE


def start_of(jobs, attempt: int) -> tuple[str, str | None]:
    """How the ranks of an attempt came to be, and why."""
    (launched,) = [p["attrs"] for p in jobs.points() if p["name"] == "launched" and p["attrs"]["attempt"] == attempt]
    return launched["start"], launched["why"]


def succeed(jobs, attempt: int = 1, **fields: object) -> tuple[str, str | None]:
    status = jobs.run("*:exit:0", attempt=attempt, devices=1, **{"standby_idle_s": IDLE_S, **fields})
    assert status.state is JobState.SUCCEEDED, status
    return start_of(jobs, attempt)


def test_another_environment_of_imports_gets_another_standby(jobs) -> None:
    assert succeed(jobs) == ("warm", None)
    first = standby()
    assert succeed(jobs, 2, env={"ANYTHING": "else"}) == ("warm", None)
    assert standby() == first
    assert succeed(jobs, 3, env={"OMP_NUM_THREADS": "7"}) == ("warm", None)
    assert standby().pid != first.pid and gone(first)


def test_another_interpreter_on_disk_gets_another_standby(
    jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setenv("ETT_PYTHON_TRAINER", str(python))
    assert succeed(jobs) == ("warm", None)
    first = standby()
    os.utime(python, ns=(1, 1))
    jobs.until(lambda: gone(first), "a standby of old code stays")
    assert "changed on disk since: interpreter" in standby_place().log_path.read_text()
    assert succeed(jobs, 2) == ("warm", None)


def test_a_job_of_another_kind_is_refused_by_name_of_what_differs(jobs) -> None:
    assert succeed(jobs) == ("warm", None)
    first = standby()
    with closing(standby_place().connect(5.0)) as connection:
        send(connection, Kind.LEND, parts={**first.parts, "code": "another"}, idle_s=1.0, job="late")
        answer = receive(connection)
    assert answer is not None and answer.kind is Kind.REFUSED
    assert answer.fields["why"].endswith("they differ in code")
    jobs.until(lambda: gone(first), "it stays")


def test_a_standby_that_holds_too_much_memory_leaves(jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_STANDBY_MEMORY_MB", "1")
    start, why = succeed(jobs)
    assert start == "cold"
    assert why is not None and "more than its 1" in why


def test_a_standby_whose_socket_was_removed_leaves(jobs) -> None:
    succeed(jobs)
    first = standby()
    standby_place().socket_path.unlink()
    jobs.until(lambda: gone(first), "it stays")
    assert succeed(jobs, 2) == ("warm", None)


def test_a_standby_that_does_not_answer_is_ended(jobs) -> None:
    succeed(jobs)
    first = standby()
    process = first.process
    assert process is not None
    process.suspend()
    start, why = succeed(jobs, 2)
    assert start == "cold"
    assert why is not None and "did not answer" in why
    assert gone(first)
    assert succeed(jobs, 3) == ("warm", None)


def test_a_folder_that_others_may_write_to_is_not_used(jobs) -> None:
    standby_place().prepare()
    standby_place().root.chmod(0o770)
    start, why = succeed(jobs)
    assert start == "cold"
    assert why is not None and "mode 0770" in why
    assert standby_place().record() is None


def test_a_rank_that_cannot_be_forked_is_started_cold(jobs) -> None:
    request = jobs.request("x", devices=1, standby_idle_s=IDLE_S)
    object.__setattr__(request, "command", ("no_such_module",))
    status = jobs.end(jobs.launcher.submit(request))
    assert status.state is JobState.FAILED
    assert "no_such_module" in status.message
    kept = jobs.run_folder.logs_dir / "train-a1" / "supervisor.log"
    assert "rank 0 is started cold: NotARankError: no module no_such_module" in kept.read_text()


def test_an_environment_longer_than_the_standby_s_still_names_the_job(jobs) -> None:
    handle = jobs.submit(
        "*:say:up", "*:sleep:60", env={f"LONG_{n}": "x" * 50_000 for n in range(5)}, standby_idle_s=IDLE_S, grace_s=0.2
    )
    jobs.until(lambda: len(list(jobs.launcher.logs(handle))) == 2, "it does not start")
    (rank,) = jobs.launcher.describe(handle).ranks
    assert psutil.Process(rank.pid).environ()["ETT_JOB"] == handle.id
    jobs.launcher.cancel(handle)
    assert jobs.end(handle).state is JobState.CANCELLED


def test_two_jobs_at_once_have_a_keeper_each(jobs) -> None:
    one = jobs.submit("*:say:up", "*:sleep:60", task="one", standby_idle_s=IDLE_S)
    jobs.until(lambda: len(list(jobs.launcher.logs(one))) == 2, "it does not start")
    other = jobs.submit("*:say:up", "*:sleep:60", task="other", standby_idle_s=IDLE_S)
    jobs.until(lambda: len(list(jobs.launcher.logs(other))) == 2, "it does not start")
    ranks = [jobs.launcher.describe(handle).ranks[0].pid for handle in (one, other)]
    keepers = [psutil.Process(pid).ppid() for pid in ranks]
    assert len(set(keepers)) == 2
    assert {psutil.Process(pid).ppid() for pid in keepers} == {standby().pid}
    jobs.launcher.cancel(one)
    assert jobs.end(one).state is JobState.CANCELLED
    assert psutil.pid_exists(ranks[1])


def test_a_process_with_threads_is_not_forked() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with pytest.raises(UnsafeForkError, match="threads besides its main one"):
            check_forkable()
    finally:
        release.set()
        thread.join()


def test_what_the_trainer_imports_ahead_leaves_one_thread() -> None:
    script = (
        "from trainer.standby.preload import *; preload(modules_for('trainer')); check_forkable(); "
        "import os; print(sorted(os.listdir('/proc/self/fd')), resident_mb() < 1024)"
    )
    quiet = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "4"}
    root = str(Path(__file__).parents[2])
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **quiet, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout == "['0', '1', '2', '3'] True\n"  # 3 is the listing's own


def test_a_socket_lies_as_deep_as_it_likes(tmp_path: Path) -> None:
    place = StandbyPlace(tmp_path.joinpath(*["a-long-name-of-a-folder"] * 8) / "standby")
    place.prepare()
    with closing(socket.socket(socket.AF_UNIX)) as listener, place.short_socket_path() as path:
        listener.bind(path)
        listener.listen()
        with closing(place.connect(1.0)):
            check_peer(listener.accept()[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_served(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    check_peer(ours)
    ours.close()
    theirs.close()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0ett-test-{os.getpid()}")
    listener.listen()
    caller = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
    )
    other = subprocess.Popen([sys.executable, "-c", caller.replace("sys.argv[1]", repr(f"\0ett-test-{os.getpid()}"))])
    connection, _ = listener.accept()
    with closing(connection), pytest.raises(PlaceError, match="user 65534"):
        check_peer(connection)
    other.wait()
    listener.close()


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"\0\0\0\x10{}", "hung up in the middle"),
        (b"\xff\xff\xff\xff", "at most"),
        (struct.pack(">I", 2) + b"[]", "not a message"),
        (struct.pack(">I", 2) + b"{}", "not a message"),
        (struct.pack(">I", 31) + b'{"protocol": 2, "kind": "lend"}', "protocol 2"),
        (struct.pack(">I", 31) + b'{"protocol": 1, "kind": "what"}', "not a message"),
    ],
)
def test_what_is_not_a_message_is_said_to_be_none(sent: bytes, complaint: str) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(MessageError, match=complaint):
            receive(ours)


def test_a_caller_that_says_nothing_does_not_stop_the_next(jobs) -> None:
    succeed(jobs)
    with closing(standby_place().connect(5.0)), closing(standby_place().connect(5.0)) as nonsense:
        nonsense.sendall(b"\0\0\0\x02[]")
        assert succeed(jobs, 2) == ("warm", None)


def test_identity_names_what_differs() -> None:
    environment = {"OMP_NUM_THREADS": "1", "RANK": "0"}
    ours = Identity.of(sys.executable, environment, ["json"])
    assert ours.digest == Identity.of(sys.executable, {**environment, "RANK": "1"}, ["json"]).digest
    other = Identity.of(sys.executable, {"TORCH_LOGS": "all"}, ["csv"])
    assert ours.differs_in(other.parts) == ["$OMP_NUM_THREADS", "$TORCH_LOGS", "preload"]


def test_an_environment_without_room_is_an_error() -> None:
    script = (
        "import os; from trainer.standby.environment_area import show; e = {'ETT_JOB': 'x' * 200_000}; "
        "os.environ.clear(); show(e, ('ETT_JOB',))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{EnvironmentAreaError.__name__}: the environment has no room for ETT_JOB" in told.stderr


def test_a_standby_is_not_a_process_of_the_job_that_started_it(jobs) -> None:
    handle = jobs.submit("*:sleep:0.5", devices=1, standby_idle_s=IDLE_S)
    jobs.state(handle, JobState.RUNNING)
    supervisor = psutil.Process(jobs.supervisor_pid(handle))
    assert supervisor.children(recursive=True) == []
    jobs.end(handle)
    time.sleep(0.2)
    assert not gone(standby())
