"""`validate`: is this event log (or ett.json) whole and well-formed, and what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ett_reports.codec import encode
from ett_reports.document import read_document
from ett_reports.reader import read_log
from ett_reports.render.figures import percent

HELP = "check an event log: exit 0 if it is clean, 1 if anything was torn, lost or foreign, 2 if it is no log"

_SIZES = frozenset({"files", "processes", "events"})
_NOTES = frozenset({"flight_windows", "unknown_points"})
"""Shown, but nothing is wrong: a killed process's last window was taken up, and anybody may add points."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("events", help="a run folder, its events folder, one event file, or an ett.json")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def execute(arguments: Namespace) -> int:
    if arguments.events.endswith(".json"):
        document = read_document(Path(arguments.events))
        print(f"{document.job.job}: a report that this program reads, ETT {percent(document.job.ett)}")
        return 0
    log = read_log(arguments.events)
    quality = log.quality
    counts = dataclasses.asdict(quality)
    told = {name: count for name, count in counts.items() if count and name not in _SIZES}
    trouble = told.keys() - _NOTES
    if arguments.json:
        print(json.dumps({"job": log.job, "clean": not trouble, "quality": encode(quality)}, indent=1))
        return 1 if trouble else 0
    print(f"{log.job}: {quality.events} events of {quality.processes} processes in {quality.files} files")
    for name, count in told.items():
        print(f"  {name.replace('_', ' ')}: {count}")
    print("  clean" if not trouble else "  usable, with the above counted in every report")
    return 1 if trouble else 0
