"""The startup results as Markdown, and their place in docs/startup.md."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.startup import arms
from tests.benchmarks.startup.arms import Arm, Experiment
from tests.benchmarks.startup.attempts import LATENCY_S
from tests.benchmarks.startup.estimates import Interval, median_of, ratio_of
from tests.benchmarks.startup.goals import judge
from tests.benchmarks.startup.pictures import sharding_picture
from tests.benchmarks.startup.results import Result, runs_of

BEGIN, END = "<!-- generated: startup -->", "<!-- end -->"
NOTHING = ""

_IDLE = " and ".join(f"`{technique}`" for technique in arms.IN_ORDER if technique in arms.IDLE)
_TIMES = (("tts_s", "TTS s"), ("sharding_s", "sharding s"), ("compile_busy_s", "compile s"))
_MORE = (("compile_exposed_s", "exposed s"), ("first_step_s", "first step s"))


def page(results: Sequence[Result], *, collectives: str = "") -> str:
    """All that is generated: machine, goals, and one table for each experiment that has runs."""
    parts = [_circumstances(results), "### Goals", _goals(results)]
    for title, tables in _sections(results):
        if tables:
            parts += [f"### {title}", *tables]
    if collectives:
        parts += ["### Collectives at 128 ranks", "Counted on a fake process group, never timed.", collectives.strip()]
    return "\n\n".join(parts)


def _sections(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """Titles and the tables below them; an experiment without runs has none."""
    measured = {result.cell for result in results}

    def known(experiment: Experiment) -> bool:
        return sum(arm.cell.name in measured for arm in experiment.arms) > 1

    def some(*experiments: Experiment, made) -> list[str]:  # type: ignore[no-untyped-def]
        return [made(one) for one in experiments if known(one)]

    shardings = [one for one in arms.EXPERIMENTS if one.name.startswith("sharding")]
    regimes = [arms.regimes(model) for model in arms.Architecture]
    return [
        (
            "One technique after the other",
            some(arms.cumulative(), made=lambda one: _full(results, one))
            and [
                "A refresh on the day after another, from its submission to its first completed step. "
                f"`of all off` is the ratio of TTS. {_IDLE} have nothing to do here, and experiments of their own.",
                *some(arms.cumulative(), made=lambda one: _full(results, one)),
                "![Seconds to the first step, one technique after the other](pictures/startup-cumulative.svg)",
            ],
        ),
        (
            "All but one",
            some(arms.leave_one_out(), made=lambda one: _full(results, one))
            and [
                "What is lost without a technique when all others are on: above 1 it is missed.",
                *some(arms.leave_one_out(), made=lambda one: _full(results, one)),
            ],
        ),
        ("Compilation by what is cached", [part for one in regimes if known(one) for part in _regime(results, one)]),
        ("Restart", some(arms.restart(), made=lambda one: _plain(results, one, "tts_s", "seconds"))),
        (
            "Sharding phase",
            [
                _sharding(results, [one for one in shardings if known(one)]),
                *["![The sharding phase by number of tables](pictures/startup-sharding.svg)"]
                * (sharding_picture(results) is not None),
            ]
            * any(map(known, shardings)),
        ),
        (
            "Data that come late",
            [
                f"**Emulated:** a wrapper of the benchmark opens every file {LATENCY_S:g} s late. The generated data "
                "themselves are there at once.",
                *some(arms.latency(), made=lambda one: _plain(results, one, "tts_s", "TTS s")),
            ]
            * known(arms.latency()),
        ),
        ("Attention traced or not", some(arms.untraced(), made=lambda one: _full(results, one))),
        ("Autotuned matrix products", some(arms.autotuning(), made=lambda one: _full(results, one))),
    ]


def _circumstances(results: Sequence[Result]) -> str:
    machines = sorted({str(result.machine) for result in results})
    loads, codes = [result.load for result in results], {result.code for result in results}
    counts = [len({one.round for one in results if one.cell == cell}) for cell in {one.cell for one in results}]
    each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    told = (
        f"Measured on {'; '.join(machines)}. {len(results)} runs, {each} of each arm, "
        f"interleaved in rounds; load when a run began {min(loads):.1f} to {max(loads):.1f}. Medians with 95% "
        "bootstrap intervals over the runs (of five runs that is about their range); a ratio is of medians, with "
        "whole rounds resampled. *Indistinguishable*: the interval holds 1. Of some fifty comparisons, two or three "
        "just beside 1 are chance."
    )
    return told + (f" **The code changed between the runs ({len(codes)} versions).**" if len(codes) > 1 else "")


def _goals(results: Sequence[Result]) -> str:
    rows = [
        (
            judged.goal.text,
            f"-{100 * (1 - judged.goal.at_most):.0f}%",
            judged.goal.paper,
            NOTHING if judged.ratio is None else _change(judged.ratio),
            judged.word,
        )
        for judged in judge(results)
    ]
    return table(["against our own all off", "goal", "paper", "measured", ""], rows)


def _full(results: Sequence[Result], experiment: Experiment) -> str:
    """Every measure of every arm, with the ratios of TTS and of the steady step; arms without runs say so."""
    base = experiment.baseline
    headings = [name for _, name in (*_TIMES, *_MORE)]
    head = ["", *headings, "step ms", f"of {base.label}", "", "step"]
    rows = []
    measured = _measured(results, experiment)
    for arm in experiment.arms:
        if arm not in measured:
            rows.append((arm.label, "not measured yet", *[NOTHING] * (len(head) - 2)))
            continue
        cells = [_seconds(median_of(runs_of(results, arm.cell, measure))) for measure, _ in (*_TIMES, *_MORE)]
        step = median_of(runs_of(results, arm.cell, "step_s"))
        tts, steady = (_against(results, arm, base, measure) for measure in ("tts_s", "step_s"))
        own = arm is base
        rows.append(
            (
                arm.label,
                *cells,
                NOTHING if step is None else f"{1000 * step.value:.1f}",
                NOTHING if own else _ratio(tts),
                NOTHING if own else _verdict(tts),
                NOTHING if own else _verdict(steady),
            )
        )
    return table(head, rows)


def _regime(results: Sequence[Result], experiment: Experiment) -> list[str]:
    """Compile seconds and the ratio, as the goals ask for it."""
    return [f"{experiment.title}:", _plain(results, experiment, "compile_busy_s", "compile s", step=True)]


def _plain(results: Sequence[Result], experiment: Experiment, measure: str, heading: str, *, step: bool = False) -> str:
    base = experiment.baseline
    rows = []
    for arm in _measured(results, experiment):
        ratio = _against(results, arm, base, measure)
        own = arm is base
        row = [arm.label, _seconds(median_of(runs_of(results, arm.cell, measure)))]
        row += [NOTHING if own else _ratio(ratio), NOTHING if own else _verdict(ratio)]
        if step:
            found = median_of(runs_of(results, arm.cell, "step_s"))
            row.append(NOTHING if found is None else f"{1000 * found.value:.1f}")
        rows.append(row)
    return table(["", heading, f"of {base.label}", "", *(["step ms"] if step else [])], rows)


def _sharding(results: Sequence[Result], experiments: Sequence[Experiment]) -> str:
    rows = []
    for experiment in experiments:
        off, on = experiment.arms
        before, after = (median_of(runs_of(results, arm.cell, "sharding_s")) for arm in (off, on))
        ratio = _against(results, on, off, "sharding_s")
        rows.append((experiment.title, _seconds(before), _seconds(after), _ratio(ratio), _verdict(ratio)))
    techniques = ", ".join(f"`{one}`" for one in arms.IN_ORDER if one in arms.SHARDING)
    return table(["seconds of the sharding phase", "all off", techniques, "ratio", ""], rows)


def _measured(results: Sequence[Result], experiment: Experiment) -> list[Arm]:
    names = {result.cell for result in results}
    return [arm for arm in experiment.arms if arm.cell.name in names]


def _against(results: Sequence[Result], arm: Arm, base: Arm, measure: str) -> Interval | None:
    return ratio_of(runs_of(results, arm.cell, measure), runs_of(results, base.cell, measure))


def _seconds(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    digits = 2 if found.value < 10 else 1
    spread = "" if found.low is None else f" ({found.low:.{digits}f} to {found.high:.{digits}f})"
    return f"{found.value:.{digits}f}{spread}"


def _ratio(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    spread = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.value:.2f}{spread}"


def _change(found: Interval) -> str:
    if found.low is None or found.high is None:
        return f"{100 * (found.value - 1):+.1f}%"
    return f"{100 * (found.value - 1):+.1f}% ({100 * (found.low - 1):+.1f} to {100 * (found.high - 1):+.1f})"


def _verdict(found: Interval | None) -> str:
    return NOTHING if found is None else found.verdict.value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers.

    >>> print(table(["arm", "s"], [["all off", "3.10"]]))
    | arm | s |
    | --- | ---: |
    | all off | 3.10 |
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
