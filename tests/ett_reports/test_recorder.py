"""The recorder: what it writes fits the published schema, survives what disks and processes do, and costs little."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ett_reports.events import EventError, Phase, ProcessIdentity, Source
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder

SCHEMA = json.loads((Path(__file__).parents[2] / "ett_reports/schema/event-1.json").read_text())


def identity(process: str = "trainer-a1-r0") -> ProcessIdentity:
    return ProcessIdentity(job="shop/run", source=Source.TRAINER, process=process, attempt=1, rank=0, world_size=1)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()]


def write_one_of_each(folder: Path) -> None:
    with Recorder(folder, identity()) as recorder:
        with recorder.span(Phase.PREPROCESSING) as warm_up:
            pass
        with recorder.span(Phase.COMPILE, waits_for=[warm_up]) as compiling:
            compiling.note(cache="miss")
        with pytest.raises(RuntimeError), recorder.span(Phase.TRAIN_MODULE):
            raise RuntimeError("no memory")
        recorder.record_span(Phase.PLUGIN_INIT, 5, 9)
        recorder.point("stream", planned_samples=100)
        recorder.point("submitted", wall_ns=1_700_000_000_000_000_000, attempt=1)
        recorder.begin_steps(cursor=0)
        recorder.step(cursor=10, data_wait_ns=3)
        recorder.step(cursor=20)


def test_every_line_fits_the_published_schema(tmp_path: Path) -> None:
    write_one_of_each(tmp_path)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    written = lines(tmp_path)
    for line in written:
        validator.validate(line)
    assert {line["kind"] for line in written} == {"process", "open", "span", "point", "steps", "end"}


def test_examples_of_the_schema_fit_it() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for definition in SCHEMA["$defs"].values():
        for example in definition["examples"]:
            validator.validate(example)


def test_schema_lists_every_recordable_phase_and_kind() -> None:
    from ett_reports.events import DERIVED_PHASES, Kind

    assert SCHEMA["$defs"]["span"]["properties"]["phase"]["enum"] == [p for p in Phase if p not in DERIVED_PHASES]
    assert set(SCHEMA["$defs"]) == set(Kind)


def test_read_back_what_was_written(tmp_path: Path) -> None:
    write_one_of_each(tmp_path)
    log = read_log(tmp_path)
    (process,) = log.processes
    assert process.ended and process.identity == identity()
    assert [span.phase for span in process.spans if not span.failed][-2:] == [Phase.PREPROCESSING, Phase.COMPILE]
    assert next(s for s in process.spans if s.phase is Phase.COMPILE).waits_for == ("trainer-a1-r0#1",)
    assert next(s for s in process.spans if s.phase is Phase.TRAIN_MODULE).failed
    (window,) = process.windows
    assert window.cursor == (10, 20) and window.data_wait_ns == (3, 0) and window.closed
    quality = log.quality
    assert (quality.torn_lines, quality.duplicates, quality.missing_sequence, quality.invalid_events) == (0, 0, 0, 0)


def test_window_of_the_open_second_is_in_the_flight_recorder(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, identity())
    recorder.begin_steps(cursor=0)
    for cursor in range(1, 101):
        recorder.step(cursor=cursor)
    log = read_log(tmp_path)
    assert sum(len(window.end_ns) for window in log.processes[0].windows) == 100
    assert log.quality.flight_windows == 1
    recorder.close()
    assert read_log(tmp_path).quality.flight_windows == 0


def test_a_full_window_is_written_out_early(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, identity())
    recorder.begin_steps(cursor=0)
    for cursor in range(1, 10_001):
        recorder.step(cursor=cursor)
    (process,) = read_log(tmp_path).processes
    cursors = [cursor for window in process.windows for cursor in window.cursor]
    assert cursors == list(range(1, 10_001))
    recorder.close()


def test_segments_rotate_and_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ett_reports.recorder.SEGMENT_BYTES", 2000)
    with Recorder(tmp_path, identity()) as recorder:
        for number in range(100):
            recorder.point("metrics", scope="train", auc=number / 100)
    assert len(list(tmp_path.rglob("*.jsonl"))) > 3
    (process,) = read_log(tmp_path).processes
    assert [point.attrs["auc"] for point in process.points] == [number / 100 for number in range(100)]
    assert read_log(tmp_path).quality.missing_sequence == 0


def test_a_taken_name_gets_its_own_folder(tmp_path: Path) -> None:
    with Recorder(tmp_path, identity()) as first, Recorder(tmp_path, identity()) as second:
        assert (first.identity.process, second.identity.process) == ("trainer-a1-r0", "trainer-a1-r0.2")


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    with Recorder(tmp_path, identity()) as recorder:

        def work() -> None:
            for _ in range(50):
                with recorder.span(Phase.PREPROCESSING):
                    recorder.point("note")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = read_log(tmp_path)
    assert len(log.processes[0].spans) == 200 and len({span.thread for span in log.processes[0].spans}) == 4
    assert len({span.id for span in log.processes[0].spans}) == 200
    assert log.quality.torn_lines == log.quality.missing_sequence == log.quality.duplicates == 0


def test_a_forked_child_is_silent(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, identity())
    recorder.begin_steps(cursor=0)
    child = os.fork()
    if child == 0:
        recorder.point("from_the_child")
        recorder.heartbeat()
        recorder.step(cursor=99)
        recorder.close()
        os._exit(0)
    os.waitpid(child, 0)
    recorder.step(cursor=1)
    recorder.close()
    (process,) = read_log(tmp_path).processes
    assert process.ended and not process.points
    assert [window.cursor for window in process.windows] == [(1,)]


def test_a_full_disk_never_stops_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path, identity())
    real = os.write
    full = iter([False, "torn", True, True, False, False])

    def write(descriptor: int, data: bytes) -> int:
        state = next(full, False)
        if state == "torn":
            return real(descriptor, data[:20])
        if state:
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    for number in range(6):
        recorder.point("note", number=number)
    recorder.close()
    log = read_log(tmp_path)
    assert [point.attrs["number"] for point in log.processes[0].points] == [0, 4, 5]
    assert log.quality.lost_writes == 3 and log.quality.torn_lines == 1 and log.quality.missing_sequence == 3


def test_values_that_can_never_be_right_are_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path, identity()) as recorder:
        with pytest.raises(EventError, match="never recorded"):
            recorder.span(Phase.STEP)
        with pytest.raises(EventError, match="before it starts"):
            recorder.record_span(Phase.COMPILE, 9, 5)
        with pytest.raises(EventError, match="begin_steps"):
            recorder.step(cursor=1)
    with pytest.raises(EventError, match="folder name"):
        identity("../etc")


def test_recorder_is_silent_after_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, identity())
    recorder.begin_steps()
    recorder.close()
    recorder.close()
    recorder.step(cursor=1)
    recorder.heartbeat()
    recorder.point("late")
    with recorder.span(Phase.TEARDOWN):
        pass
    assert read_log(tmp_path).processes[0].windows == ()


def test_import_needs_the_standard_library_only() -> None:
    import subprocess
    import sys

    code = (
        "import sys; before = set(sys.modules); import ett_reports.recorder, ett_reports.levels, ett_reports.tasks, "
        "ett_reports.shipping, ett_reports.reader; "
        "roots = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(roots - set(sys.stdlib_module_names) - {'ett_reports'}))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.stdout.strip() == "[]"
