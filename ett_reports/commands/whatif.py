"""`whatif`: what ETT% would have been with a phase shortened, a failure removed or another checkpoint interval."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ett_reports.codec import encode
from ett_reports.commands import CommandError
from ett_reports.events import Phase
from ett_reports.levels import reduce
from ett_reports.log import EventLog
from ett_reports.reader import read_log
from ett_reports.whatif import WhatIf, WhatIfError, shorten, with_interval, without_failure

HELP = "ETT% with a phase shortened, a failure removed, or another checkpoint interval"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("events", help="a run folder, its events folder, or one event file")
    parser.add_argument("--shorten", action="append", default=[], metavar="PHASE=FACTOR",
                        help="compile=0.5: half of its time; compile=0: gone. May be given again")  # fmt: skip
    parser.add_argument("--remove-failure", action="append", default=[], type=int, metavar="ATTEMPT")
    parser.add_argument(
        "--interval", action="append", default=[], type=float, metavar="S", help="seconds between saves"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def execute(arguments: Namespace) -> int:
    if not (arguments.shorten or arguments.remove_failure or arguments.interval):
        raise CommandError("nothing to change: give --shorten PHASE=FACTOR, --remove-failure ATTEMPT or --interval S")
    log = read_log(Path(arguments.events))
    try:
        results = _results(log, arguments)
    except WhatIfError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print(json.dumps([encode(result) for result in results], indent=1))
    else:
        print("\n".join(line for result in results for line in _lines(result)))
    return 0


def _results(log: EventLog, arguments: Namespace) -> list[WhatIf]:
    """Each change on its own: they are not added up, since changes interact."""
    job = reduce(log)
    results = [shorten(log, *_phase_and_factor(given)) for given in arguments.shorten]
    results += [without_failure(job, attempt) for attempt in arguments.remove_failure]
    return results + [with_interval(job, interval) for interval in arguments.interval]


def _phase_and_factor(given: str) -> tuple[Phase, float]:
    name, separator, factor = given.partition("=")
    try:
        return Phase(name), float(factor if separator else "nan")
    except ValueError:
        known = ", ".join(phase.value for phase in Phase)
        raise CommandError(f"--shorten {given}: expected PHASE=FACTOR with a phase of {known}") from None


def _lines(result: WhatIf) -> list[str]:
    lines = [
        f"{result.change}: ETT {100 * result.ett:.1f}% -> {100 * result.new_ett:.1f}% ({result.points:+.1f} points), "
        f"wall time {result.wall_s:,.1f} s -> {result.new_wall_s:,.1f} s"
    ]
    for one in result.attempts:
        where = "between attempts" if one.attempt is None else f"attempt {one.attempt}"
        exposed = ", ".join(f"{leaf.value} {seconds:,.1f} s" for leaf, seconds in one.newly_exposed_s.items())
        more = f"; comes into view: {exposed}" if exposed else ""
        lines.append(f"  {where}: {one.saved_s:,.1f} s{more}")
    if result.upper_bound_s is not None:
        lines.append(f"  upper bound (1 + NoF) x the change: {result.upper_bound_s:,.1f} s")
    return lines
