"""Properties over arbitrary event logs: sums are exact, nothing raises, order does not matter, torn tails stay torn."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett_reports.events import Cause, Phase, Point
from ett_reports.levels import reduce
from ett_reports.reader import LogError, read_log
from ett_reports.report import JobReport, LogQuality, from_json, to_json
from ett_reports.tasks import reduce_refresh
from ett_reports.timeline import TimelineError
from tests.ett_reports.story import check_sums

# The soak run raises this to thousands.
EXAMPLES = int(os.environ.get("ETT_PROPERTY_EXAMPLES", "12"))
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

instants = st.integers(0, 60).map(lambda value: value * 1_000_000_000) | st.integers(0, 60_000_000_000)
cursors = st.integers(0, 40)
garbage = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@st.composite
def span_lines(draw: st.DrawFn) -> dict[str, Any]:
    start, end = sorted((draw(instants), draw(instants)))
    line = {"kind": "span", "id": draw(st.integers(1, 6)), "phase": draw(st.sampled_from(Phase)), "start_ns": start}
    line["thread"] = draw(st.sampled_from(["loop", "dpp", None]))
    line["waits_for"] = draw(st.lists(st.integers(1, 6) | st.sampled_from(["p0#1", "p1#2", "p2#3"]), max_size=2))
    if draw(st.booleans()):
        line["end_ns"] = end
    else:
        line["kind"] = "open"
    if draw(st.integers(0, 4)) == 0:
        line["error"] = "RuntimeError: no"
    return line


@st.composite
def step_lines(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 6))
    ends = sorted(draw(st.lists(st.integers(0, 20_000_000_000), min_size=count, max_size=count)))
    waits = draw(st.lists(st.integers(0, 3_000_000_000), min_size=count, max_size=count) | st.just([]))
    return {
        "kind": draw(st.sampled_from(["steps", "steps", "sweep"])),
        "window": draw(st.integers(1, 4)),
        "start_ns": draw(instants),
        "cursor_start": draw(cursors | st.none()),
        "end_ns": ends,
        "cursor": draw(st.lists(cursors, min_size=count, max_size=count).map(sorted)),
        "data_wait_ns": waits,
        "thread": draw(st.sampled_from(["loop", None])),
        "heartbeat_ns": draw(instants),
    }


@st.composite
def point_lines(draw: st.DrawFn) -> dict[str, Any]:
    attrs = {
        "attempt": draw(st.integers(1, 3)),
        "cause": draw(st.sampled_from([*Cause, None, "gremlins"])),
        "outcome": draw(st.sampled_from(["completed", "failed", None])),
        "cursor": draw(cursors),
        "planned_samples": draw(cursors),
        "step": draw(st.integers(0, 5)),
        "devices": draw(st.integers(0, 4)),
        "exit_codes": draw(st.lists(st.integers(-15, 140), max_size=2)),
        "task": draw(st.sampled_from([None, "train", "launch", "publish"])),
        "try_number": draw(st.integers(1, 2)),
        "auc": draw(st.floats(allow_nan=True)),
    }
    kept = {name: value for name, value in attrs.items() if draw(st.integers(0, 3))}
    for name in ("scheduled", "start", "end"):
        kept[name] = draw(instants | st.none())
    line = {"kind": "point", "name": draw(st.sampled_from(Point)), "mono_ns": draw(instants), "attrs": kept}
    if draw(st.booleans()):
        line["wall_ns"] = draw(instants)
    return line


@st.composite
def mangled_lines(draw: st.DrawFn) -> dict[str, Any]:
    line = draw(span_lines() | step_lines() | point_lines())
    line[draw(st.sampled_from(sorted(line)))] = draw(garbage)
    return line


@st.composite
def processes(draw: st.DrawFn) -> list[str]:
    """The lines of one process's file."""
    number = draw(st.integers(0, 4))
    source = draw(st.sampled_from(["trainer", "trainer", "trainer", "launcher", "scheduler", "airflow"]))
    header: dict[str, Any] = {"kind": "process", "job": "shop/run", "source": source, "process": f"p{number}"}
    header |= {"attempt": draw(st.none() | st.integers(0, 3)), "rank": number, "world_size": draw(st.integers(1, 3))}
    header |= {"host": draw(st.sampled_from(["a", "b"])), "pid": number, "mono_ns": draw(instants)}
    header["wall_ns"] = header["mono_ns"] + draw(st.sampled_from([0, 0, 5_000_000_000, 90_000_000_000]))
    events = draw(st.lists(span_lines() | step_lines() | point_lines() | mangled_lines(), max_size=10))
    if draw(st.booleans()):
        events.append({"kind": "end", "mono_ns": draw(instants), "wall_ns": draw(instants)})
    return [json.dumps({"v": 1, "seq": index, **event}) for index, event in enumerate([header, *events])]


logs = st.lists(processes(), min_size=1, max_size=5)


def write(folder: Path, files: list[list[str]], names: list[str] | None = None) -> Path:
    for index, lines in enumerate(files):
        name = names[index] if names else f"f{index}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "000001.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def outcome(folder: Path, now: int | None = None) -> JobReport | None:
    """The report, checked; None where there is nothing to reduce. Anything else that is raised fails the test."""
    try:
        log = read_log(folder)
        report = reduce(log, now)
    except (LogError, TimelineError):
        return None
    check_sums(report)
    reduce_refresh(log, report, now)
    assert from_json(json.loads(json.dumps(to_json(report)))) == report
    return report


def without_quality(report: JobReport | None) -> JobReport | None:
    return None if report is None else dataclasses.replace(report, quality=LogQuality(), degraded=())


@given(logs, st.none() | instants)
@quick
def test_sums_are_exact_for_any_log(files: list[list[str]], now: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome(write(Path(folder), files), now)


@given(logs, st.randoms(use_true_random=False))
@quick
def test_order_of_files_does_not_matter(files: list[list[str]], chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        names = [f"f{index}" for index in range(len(files))]
        chance.shuffle(names)
        first = outcome(write(Path(one), files))
        second = outcome(write(Path(two), files, names))
        assert first == second


@given(logs, st.data())
@quick
def test_a_truncated_log_never_raises(files: list[list[str]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        target = sorted(Path(folder).rglob("*.jsonl"))[data.draw(st.integers(0, len(files) - 1))]
        whole = target.read_bytes()
        target.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        outcome(Path(folder))


@given(logs, st.binary(min_size=1, max_size=20).filter(lambda tail: b"\n" not in tail and tail.strip()))
@quick
def test_a_torn_tail_changes_only_its_own_count(files: list[list[str]], tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = outcome(write(Path(folder), files))
        target = sorted(Path(folder).rglob("*.jsonl"))[0]
        target.write_bytes(target.read_bytes() + b'{"v":1,"ki' + tail)
        after = outcome(Path(folder))
        assert without_quality(before) == without_quality(after)
        if before is not None and after is not None:
            assert dataclasses.replace(before.quality, torn_lines=before.quality.torn_lines + 1) == after.quality


@given(logs)
@quick
def test_duplicated_lines_change_only_their_count(files: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        plain = outcome(write(Path(one), files))
        doubled = outcome(write(Path(two), [[line for line in lines for _ in range(2)] for lines in files]))
        assert without_quality(plain) == without_quality(doubled)


@given(st.lists(st.binary(max_size=200), max_size=4))
@quick
def test_any_bytes_are_read_without_raising(files: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for index, data in enumerate(files):
            (Path(folder) / f"{index}.jsonl").write_bytes(data)
            (Path(folder) / f"p{index}").mkdir()
            (Path(folder) / f"p{index}" / "flight.bin").write_bytes(b"ETTFLR01" + data)
        outcome(Path(folder))
