"""`interval`: how often to save, what the present interval costs, and Fig. 3 for one's own figures."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ett_reports.codec import encode
from ett_reports.commands import CommandError
from ett_reports.commands.inputs import report_at
from ett_reports.interval import Advice, Behaviour, IntervalError, advise, behaviour_of, curves, told
from ett_reports.render.chart import Axis, Line, line_chart

HELP = "the best checkpoint interval (Young, Daly), and what the present one costs"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="a run folder, its events or its ett.json; else give the figures")
    parser.add_argument("--blocking", type=float, metavar="S", help="CSBT: seconds that one save blocks the loop")
    parser.add_argument("--loop", type=float, metavar="S", help="T: seconds in the loop")
    parser.add_argument("--failures", type=float, metavar="N", help="F: failures that lost unsaved progress")
    parser.add_argument("--durable", type=float, metavar="S", help="D: seconds until a save is durable")
    parser.add_argument("--present", type=float, metavar="S", help="the present interval")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw wasted time over the interval (Fig. 3)")
    parser.add_argument("--compare-blocking", type=float, nargs="+", metavar="S", help="one curve for each of these")
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")


def execute(arguments: Namespace) -> int:
    try:
        behaviour, present = _figures(arguments)
        advice = advise(behaviour, present)
        if arguments.plot:
            _write(Path(arguments.plot), fig_3(behaviour, arguments.compare_blocking or [behaviour.blocking_s]))
    except IntervalError as error:
        raise CommandError(str(error)) from None
    print(json.dumps(encode(advice), indent=1) if arguments.json else "\n".join(_lines(advice)))
    return 0


def fig_3(behaviour: Behaviour, blocking_s: list[float]) -> str:
    """Wasted time as a share of the loop over the save interval, one curve per blocking time."""
    if not behaviour.failures:
        raise IntervalError("--plot needs failures: without any the curve only falls; give --failures")
    longest = 3 * max(curve.best[0] for curve in curves(behaviour, blocking_s, []))
    steps = [longest * step / 200 for step in range(4, 201)]
    drawn = curves(behaviour, blocking_s, steps)
    lines = [
        Line(
            name=f"{curve.blocking_s:g} s blocked",
            points=[(at / 60, 100 * share) for at, share in curve.points],
            mark=(curve.best[0] / 60, 100 * curve.best[1]),
            mark_text=f"{curve.best[0]:,.0f} s",
        )
        for curve in drawn
    ]
    highest = 2.5 * max(100 * curve.best[1] for curve in drawn)
    title = (
        f"Wasted training time over the save interval, {behaviour.failures:g} failures in {behaviour.loop_s / 3600:g} h"
    )
    x = Axis(title="save interval, minutes", low=0, high=longest / 60)
    return line_chart(
        lines, title=title, x=x, y=Axis(title="wasted, % of time in the loop", low=0, high=highest, unit="%")
    )


def _figures(arguments: Namespace) -> tuple[Behaviour, float | None]:
    given = {"blocking_s": arguments.blocking, "loop_s": arguments.loop, "failures": arguments.failures}
    present = arguments.present
    measured = None
    if arguments.run:
        job = report_at(arguments.run).job
        measured = behaviour_of(job)
        if present is None and job.checkpoints.interval_ns is not None:
            present = job.checkpoints.interval_ns / 1e9
    missing = [name for name, value in given.items() if value is None]
    if measured is None and missing:
        names = ", ".join("--" + name.removesuffix("_s") for name in missing)
        raise CommandError(f"give a run, or {names} too")
    return Behaviour(
        **{name: getattr(measured, name) if value is None else value for name, value in given.items()},
        durable_s=arguments.durable if arguments.durable is not None else (measured.durable_s if measured else 0.0),
    ), present


def _lines(advice: Advice) -> list[str]:
    behaviour = advice.behaviour
    lines = [
        advice.text,
        f"  a save blocks {told(behaviour.blocking_s)}, is durable after {told(behaviour.durable_s)}; "
        f"{behaviour.failures:g} failures in {told(behaviour.loop_s)} of loop",
    ]
    most = "without bound" if advice.at_most_s is None else told(advice.at_most_s)
    lines.append(
        f"  with {advice.failures_low:.2f} to {advice.failures_high:.2f} failures (95%) the best interval is "
        f"{told(advice.at_least_s)} to {most}"
    )
    if advice.present and advice.present_low and advice.present_high and advice.saving_s is not None:
        lines.append(
            f"  the present {told(advice.present.interval_s)} waste {told(advice.present.total_s)} "
            f"({told(advice.present_low.total_s)} to {told(advice.present_high.total_s)}); "
            f"the best would save {told(max(0.0, advice.saving_s))}"
        )
    return lines


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
