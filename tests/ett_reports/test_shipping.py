"""Shipping: the run folder's copy is always a prefix that ends at a line, and a dead process loses no step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ett_reports.events import Phase, ProcessIdentity, Source
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from ett_reports.shipping import Shipper


def recorder(folder: Path, process: str = "trainer-a1-r0") -> Recorder:
    identity = ProcessIdentity(job="shop/run", source=Source.TRAINER, process=process, attempt=1, rank=0)
    return Recorder(folder, identity)


def cursors(folder: Path) -> list[int]:
    return [cursor for p in read_log(folder).processes for window in p.windows for cursor in window.cursor]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "run" / "events"


def test_each_pass_ships_what_is_new(local: Path, remote: Path) -> None:
    writer, shipper = recorder(local), Shipper(local, remote)
    assert shipper.ship() > 0
    assert shipper.ship() == 0
    writer.point("note")
    assert shipper.ship() > 0
    writer.close()
    shipper.ship()
    assert (remote / "trainer-a1-r0/000001.jsonl").read_bytes() == (local / "trainer-a1-r0/000001.jsonl").read_bytes()


def test_the_open_window_and_the_heartbeat_travel_too(local: Path, remote: Path) -> None:
    writer, shipper = recorder(local), Shipper(local, remote)
    writer.begin_steps(cursor=0)
    for cursor in (1, 2, 3):
        writer.step(cursor=cursor)
    shipper.ship()
    assert cursors(remote) == [1, 2, 3]


def test_what_a_killed_shipper_left_half_written_is_swept(local: Path, remote: Path) -> None:
    writer = recorder(local)
    Shipper(local, remote).ship()
    torn = [folder / "trainer-a1-r0" / ".flight.bin.4711.writing" for folder in (local, remote)]
    for path in torn:
        path.write_bytes(b"half")
    writer.close()
    Shipper(local, remote).sweep()
    assert not any(path.exists() for path in torn)
    assert cursors(remote) == []


def test_interrupted_and_repeated_passes_give_the_same_bytes(local: Path, remote: Path) -> None:
    writer = recorder(local)
    source, target = local / "trainer-a1-r0/000001.jsonl", remote / "trainer-a1-r0/000001.jsonl"
    chance = random.Random(7)
    for number in range(60):
        writer.point("note", number=number)
        Shipper(local, remote).ship()  # a new shipper each time, as after a crash of the agent
        if chance.random() < 0.5:
            # The copy broke off in the middle of a line.
            with target.open("r+b") as file:
                file.truncate(chance.randrange(target.stat().st_size))
    Shipper(local, remote).ship()
    assert target.read_bytes() == source.read_bytes()


def test_two_shippers_at_once_do_no_harm(local: Path, remote: Path) -> None:
    writer, one, two = recorder(local), Shipper(local, remote), Shipper(local, remote)
    for number in range(20):
        writer.point("note", number=number)
        one.ship()
        if number % 3 == 0:
            two.ship()
    two.ship()
    assert (remote / "trainer-a1-r0/000001.jsonl").read_bytes() == (local / "trainer-a1-r0/000001.jsonl").read_bytes()


def test_a_torn_line_is_not_shipped_until_it_is_whole(local: Path, remote: Path) -> None:
    recorder(local)
    source = local / "trainer-a1-r0/000001.jsonl"
    with source.open("ab") as file:
        file.write(b'{"v":1,"kind":"poi')
    shipper = Shipper(local, remote)
    shipper.sweep()
    assert (remote / "trainer-a1-r0/000001.jsonl").read_bytes().endswith(b"}\n")
    assert read_log(remote).quality.torn_lines == 0


def test_sweep_takes_up_a_dead_process(local: Path, remote: Path) -> None:
    writer = recorder(local)
    writer.begin_steps(cursor=0)
    writer.step(cursor=1)
    shipper = Shipper(local, remote)
    shipper.sweep()
    shipper.sweep()
    Shipper(local, remote).sweep()
    (remote / "trainer-a1-r0/flight.bin").unlink()
    assert cursors(remote) == [1]
    assert len((remote / "trainer-a1-r0/swept.jsonl").read_text().splitlines()) == 1


def test_sweep_leaves_a_process_alone_that_said_goodbye(local: Path, remote: Path) -> None:
    recorder(local).close()
    Shipper(local, remote).sweep()
    assert not (remote / "trainer-a1-r0/swept.jsonl").exists()


def test_a_window_swept_too_early_is_replaced_by_the_whole_one(local: Path, remote: Path) -> None:
    writer, shipper = recorder(local), Shipper(local, remote)
    writer.begin_steps(cursor=0)
    writer.step(cursor=1)
    shipper.sweep()
    writer.step(cursor=2)
    writer.close()
    shipper.ship()
    assert cursors(remote) == [1, 2]


def test_another_incarnation_of_the_same_name_is_kept_apart(tmp_path: Path, remote: Path) -> None:
    for number in (1, 2):
        with recorder(tmp_path / f"local-{number}") as writer:
            writer.point("note", number=number)
        Shipper(tmp_path / f"local-{number}", remote).sweep()
    assert sorted(path.name for path in remote.iterdir()) == ["trainer-a1-r0", "trainer-a1-r0.2"]


def test_open_spans_of_a_dead_process_arrive(local: Path, remote: Path) -> None:
    recorder(local).span(Phase.COMPILE).__enter__()
    Shipper(local, remote).sweep()
    (span,) = read_log(remote).processes[0].spans
    assert span.phase is Phase.COMPILE and span.end_ns is None


def test_nothing_to_ship_yet(local: Path, remote: Path) -> None:
    assert Shipper(local, remote).ship() == 0 == Shipper(local, remote).sweep()
