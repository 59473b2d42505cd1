"""The tolerant reader: what it counts, and the one clear line where there is nothing to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ett_reports.reader import LogError, read_log
from tests.ett_reports.story import Story

HEADER = {"kind": "process", "job": "shop/run", "source": "trainer", "process": "p0", "wall_ns": 5, "mono_ns": 5}


def write(folder: Path, *events: dict[str, Any] | str, name: str = "p0/000001.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = []
    for index, event in enumerate(events):
        texts.append(event if isinstance(event, str) else json.dumps({"v": 1, "seq": index, **event}))
    path.write_text("\n".join(texts) + "\n")
    return folder


def point(name: str = "note", **fields: Any) -> dict[str, Any]:
    return {"kind": "point", "name": name, "mono_ns": 7, "attrs": {}, **fields}


def test_counts_what_it_met(tmp_path: Path) -> None:
    write(
        tmp_path,
        HEADER,
        point("stream"),
        point("fireworks"),
        {"kind": "hologram"},
        {"kind": "span", "id": 1, "phase": "teleport", "start_ns": 1, "end_ns": 2},
        {"kind": "span", "id": 2, "phase": "compile", "start_ns": 9, "end_ns": 2},
        {"kind": "span", "id": 3, "phase": "step", "start_ns": 1, "end_ns": 2},
        point(v=2),
        point(seq=1),
        point(seq=11),
        '{"v":1,"kind":"poi',
    )
    quality = read_log(tmp_path).quality
    assert quality.unknown_points == 3  # "fireworks" and two notes: of two lines of seq 1 the first in the alphabet
    assert (quality.unknown_kinds, quality.unknown_phases, quality.invalid_events) == (1, 1, 2)
    assert (quality.other_version, quality.duplicates, quality.torn_lines) == (1, 1, 1)
    assert quality.out_of_order == 1
    assert quality.missing_sequence == 4  # 7 (other version), 8, 9 and 10


def test_an_out_of_order_file_reads_like_an_ordered_one(tmp_path: Path) -> None:
    events = [HEADER, *(point(number=index) for index in range(5))]
    ordered = [{"v": 1, "seq": index, **event} for index, event in enumerate(events)]
    one = read_log(write(tmp_path / "one", *ordered))
    two = read_log(write(tmp_path / "two", ordered[0], *reversed(ordered[1:])))
    assert one.processes == two.processes and two.quality.out_of_order == 4


def test_a_segment_without_its_header_belongs_to_its_folder(tmp_path: Path) -> None:
    write(tmp_path, HEADER)
    write(tmp_path, point(seq=1), name="p0/000002.jsonl")
    assert len(read_log(tmp_path).processes[0].points) == 1


def test_one_name_twice_is_two_processes(tmp_path: Path) -> None:
    write(tmp_path, {**HEADER, "host": "a", "pid": 1}, point(), name="p0/000001.jsonl")
    write(tmp_path, {**HEADER, "host": "b", "pid": 1}, point(), name="p0.2/000001.jsonl")
    log = read_log(tmp_path)
    assert len(log.processes) == 2 and log.quality.duplicates == 0


def test_run_folder_and_events_folder_and_file_are_the_same(tmp_path: Path) -> None:
    story = Story(tmp_path / "run" / "events")
    story.submit(1, 0)
    story.trainer(1, 0).begin(0).steps(3).finish()
    whole = read_log(tmp_path / "run")
    assert whole == read_log(tmp_path / "run" / "events")
    alone = read_log(tmp_path / "run" / "events" / "trainer-a1-r0" / "000001.jsonl")
    assert alone.processes[0].windows == whole.processes[1].windows


def test_integers_beyond_64_bits_and_booleans_are_refused(tmp_path: Path) -> None:
    write(tmp_path, HEADER, point(mono_ns=1 << 64), point(mono_ns=True), point(mono_ns=-1), point(mono_ns=1.5))
    assert read_log(tmp_path).quality.invalid_events == 4


def test_nothing_to_read_is_one_clear_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.jsonl"
    text.write_text("hello\nworld\n")
    other = write(tmp_path / "other", {**HEADER, "v": 2})
    two = write(tmp_path / "two", HEADER)
    write(two, {**HEADER, "job": "shop/other", "process": "p1"}, name="p1/000001.jsonl")
    headless = write(tmp_path / "headless", point())
    for path, said in (
        (tmp_path / "absent", "no such file or folder"),
        (empty, "no event files"),
        (text, "no line of it is a JSON object"),
        (other, "another schema version"),
        (two, "events of 2 jobs (shop/other, shop/run)"),
        (headless, "no process line"),
    ):
        with pytest.raises(LogError) as caught:
            read_log(path)
        assert said in str(caught.value) and "\n" not in str(caught.value)
