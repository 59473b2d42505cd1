"""The trace: tracks for the job, its attempts, ranks and threads, with slices that nest."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ett_reports.events import Phase
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.render.perfetto import render_trace
from tests.ett_reports.render.sample_reports import failed_once_job, hostile_job, refresh_report
from tests.ett_reports.story import Story


def slices(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def names(trace: dict[str, Any], kind: str) -> set[str]:
    return {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == kind}


def test_levels_of_the_job_are_gap_free_tracks() -> None:
    job = failed_once_job()
    tracks = slices(render_trace(job, None))
    for track in ((1, 1), (1, 2)):
        at = 0.0
        for event in tracks[track]:
            assert abs(event["ts"] - at) < 0.01
            at = event["ts"] + event["dur"]
        assert abs(at - job.wall_ns / 1000) < 0.01


def test_attempts_ranks_and_threads_have_tracks(tmp_path: Path) -> None:
    story = Story(tmp_path / "events")
    story.submit(1, 0)
    for rank in (0, 1):
        trainer = story.trainer(1, 1, rank=rank, world_size=2)
        trainer.phase(Phase.PREPROCESSING, 1, 30)
        trainer.phase(Phase.TRAIN_MODULE, 2, 31)  # crosses the other: it must not share its track
        trainer.phase(Phase.COMPILE, 31, 60)
        trainer.at(60).begin(0).steps(4).finish()
    story.complete(1, 100)
    log = read_log(story.folder)
    trace = render_trace(reduce(log), None, log)
    assert "Attempt 1" in names(trace, "process_name")
    assert {"rank 0 steps", "rank 1 steps"} <= names(trace, "thread_name")
    for events in slices(trace).values():
        ends: list[float] = []
        for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    steps = [event for events in slices(trace).values() for event in events if event["name"].startswith("step ")]
    assert len(steps) == 8 and steps[0]["args"]["samples"] == 10


def test_tasks_of_the_refresh_start_before_the_job() -> None:
    trace = render_trace(failed_once_job(), refresh_report())
    assert {"check_schema", "train", "publish"} <= names(trace, "thread_name")
    assert min(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X") == 0


def test_failures_are_marked_and_hostile_text_stays_json() -> None:
    trace = render_trace(hostile_job('"}]\x00</script>'), refresh_report())
    text = json.dumps(trace, allow_nan=False)
    assert "\\u0000" not in text
    assert [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"] == ["failure: infrastructure"]
