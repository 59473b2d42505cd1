"""`compare`: a baseline and an optimized run, pairs of them, or a leave-one-out set."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable

from ett_reports.ablation import Ablation, Measure, leave_one_out
from ett_reports.codec import encode
from ett_reports.commands import CommandError
from ett_reports.commands.inputs import report_at
from ett_reports.compare import Comparison, ComparisonRefusedError, Pair, compare
from ett_reports.confidence import Estimate
from ett_reports.document import ReportDocument
from ett_reports.events import Component

HELP = "what one run saved over another, by component; or what each technique of a set does"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", help="BASELINE OPTIMIZED: run folders, event logs or ett.json files")
    parser.add_argument("--baseline", nargs="+", default=[], metavar="RUN", help="repeats of the baseline, in order")
    parser.add_argument("--optimized", nargs="+", default=[], metavar="RUN", help="their counterparts, in order")
    parser.add_argument(
        "--leave-one-out", nargs="+", default=[], metavar="RUN", help="a set: all techniques on, each off"
    )
    parser.add_argument("--measure", choices=[m.value for m in Measure], default=Measure.LOST.value,
                        help="what a leave-one-out set is judged by (default: lost)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def execute(arguments: Namespace) -> int:
    result: Comparison | Ablation
    try:
        if arguments.leave_one_out:
            documents = [report_at(run) for run in arguments.leave_one_out]
            result = leave_one_out(documents, Measure(arguments.measure))
            lines = _ablation(result)
        else:
            baselines, optimized = _pairs(arguments)
            documents = [*baselines, *optimized]
            result = compare(baselines, optimized)
            lines = _comparison(result)
    except ComparisonRefusedError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print(json.dumps(encode(result), indent=1))
    else:
        print("\n".join([*lines, *_warnings(documents)]))
    return 0


def _pairs(arguments: Namespace) -> tuple[list[ReportDocument], list[ReportDocument]]:
    before, after = list(arguments.baseline), list(arguments.optimized)
    if arguments.runs:
        if len(arguments.runs) != 2 or before or after:
            raise CommandError("give BASELINE OPTIMIZED, or --baseline RUN ... --optimized RUN ...")
        before, after = [arguments.runs[0]], [arguments.runs[1]]
    if not before or not after:
        raise CommandError(
            "give BASELINE OPTIMIZED, or --baseline RUN ... --optimized RUN ..., or --leave-one-out RUN ..."
        )
    return [report_at(run) for run in before], [report_at(run) for run in after]


def _comparison(result: Comparison) -> list[str]:
    pair = result.pairs[0]
    before, after = (sum(p.ett[side] for p in result.pairs) / len(result.pairs) for side in (0, 1))
    lines = [
        f"ETT {100 * before:.1f}% -> {100 * after:.1f}%: {_points(result.gain_points)}, "
        f"wall time {_seconds(result.wall_s)} shorter",
        "",
        f"{'saved':<22}{'seconds':>12}{'points':>9}   95% of seconds",
    ]
    for component, estimate in result.components.items():
        if component is Component.EFFECTIVE_TRAINING:
            continue  # its share is the headline
        points = result.component_points[component].mean
        lines.append(f"{component.value:<22}{estimate.mean:>12,.1f}{points:>9.2f}   {_interval(estimate)}")
    lines.append("")
    for level, estimate in result.classes.items():
        lines.append(f"{level.value:<22}{estimate.mean:>12,.1f}{'':>9}   {_interval(estimate)}")
    return [*lines, "", *_restarts(pair)] if len(result.pairs) == 1 else [*lines, "", *_repeats(result)]


def _restarts(pair: Pair) -> Iterable[str]:
    """Section V-C: what restarts repeat of a saving in TTS."""
    if pair.restart_multiplier is not None and pair.mean_ttr_s is not None:
        yield (
            f"restart multiplier {pair.restart_multiplier:.2f}: mean TTR fell {pair.mean_ttr_s:,.1f} s, "
            f"TTS {pair.tts_s:,.1f} s"
        )
    else:
        yield "restart multiplier n/a: TTS did not drop" if pair.tts_s <= 0 else "restart multiplier n/a: no failure"
    if pair.cascade_bound_s is not None and pair.inherited_s is not None:
        yield f"cascade bound: the TTS work accounts for at most {pair.cascade_bound_s:,.1f} s (Eq. 3)"
        yield f"of the {pair.recovery_s:,.1f} s saved in recovery, {pair.inherited_s:,.1f} s are inherited from it"


def _repeats(result: Comparison) -> Iterable[str]:
    yield f"{len(result.pairs)} pairs, paired 95% intervals (Student's t)"
    if result.restart_multiplier is not None:
        yield f"restart multiplier {result.restart_multiplier.mean:.2f} ({_interval(result.restart_multiplier)})"


def _ablation(result: Ablation) -> list[str]:
    lines = [f"saved by each technique alone, s of {result.measure.value} (what is lost when only it is left out)", ""]
    lines += [f"{name:<26}{one.mean:>12,.1f}   {_interval(one)}" for name, one in result.own.items()]
    if result.total is not None:
        lines.append(f"{'all together':<26}{result.total.mean:>12,.1f}   {_interval(result.total)}")
    if result.interaction is not None:
        kind = "only together" if result.interaction > 0 else "overlap: the techniques do part of the same work"
        lines.append(f"{'interactions':<26}{result.interaction:>12,.1f}   {kind}")
    lines += [f"{' x '.join(pair.techniques):<26}{pair.seconds:>12,.1f}" for pair in result.pairs]
    return lines


def _warnings(documents: Iterable[ReportDocument]) -> list[str]:
    return [f"degraded: {document.job.job}: {line}" for document in documents for line in document.job.degraded]


def _points(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f" ({estimate.low:+.1f} to {estimate.high:+.1f})"
    return f"{estimate.mean:+.1f} points{interval}"


def _seconds(estimate: Estimate) -> str:
    return f"{estimate.mean:,.1f} s" + ("" if estimate.low is None else f" ({_interval(estimate)})")


def _interval(estimate: Estimate) -> str:
    return "one pair, no interval" if estimate.low is None else f"{estimate.low:,.1f} to {estimate.high:,.1f}"
