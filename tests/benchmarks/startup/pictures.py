"""Startup results as standalone SVG in light and dark: stacked bars with an interval at their end, and lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ett_reports.events import Phase
from ett_reports.render.chart import Axis, Line, line_chart, round_ticks
from tests.benchmarks.startup import arms
from tests.benchmarks.startup.estimates import Interval, median_of
from tests.benchmarks.startup.results import Result, runs_of

WIDTH, ROW, BAR = 860, 26, 16
_LEFT, _RIGHT, _TOP, _BOTTOM = 220, 40, 84, 46

_STYLE = """
svg { background: #ffffff; } text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #16191d; }
.title { font-size: 16px; font-weight: 600; } .soft { fill: #565f6b; }
.grid { stroke: #e2e6eb; } .axis { stroke: #8a939e; } .whisker { stroke: #16191d; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  svg { background: #181c21; } text { fill: #eceff2; } .soft { fill: #a5afba; } .grid { stroke: #2c333b; }
  .axis { stroke: #6b7580; } .whisker { stroke: #eceff2; }
}
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A share of every bar: its name, its colour, and the phases that it takes up."""

    name: str
    colour: str
    phases: frozenset[Phase]


PARTS: tuple[Part, ...] = (
    Part(
        name="scheduling and processes",
        colour="#56b4e9",
        phases=frozenset({Phase.QUEUE_WAIT, Phase.RETRY_WAIT, Phase.HARDWARE_SETUP, Phase.LAUNCHER_INIT}),
    ),
    Part(name="sharding", colour="#009e73", phases=frozenset({Phase.PROCESS_GROUP, Phase.TRAIN_MODULE})),
    Part(name="compilation", colour="#d55e00", phases=frozenset({Phase.COMPILE, Phase.RECOMPILE})),
    Part(name="data", colour="#e69f00", phases=frozenset({Phase.PREPROCESSING, Phase.FIRST_BATCH, Phase.DATA_STALL})),
)
OTHER = Part(name="all else", colour="#a3acb6", phases=frozenset())


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: seconds by part, in the order of the parts, and the interval of its length."""

    name: str
    parts: tuple[float, ...]
    interval: Interval


def stacked_bars(bars: Sequence[Bar], names: Sequence[tuple[str, str]], *, title: str, axis: str) -> str:
    """The SVG document; `names` are the parts' names and colours."""
    height = _TOP + ROW * len(bars) + _BOTTOM
    longest = max(max(sum(bar.parts), bar.interval.high or bar.interval.value) for bar in bars)
    across = WIDTH - _LEFT - _RIGHT

    def place(seconds: float) -> float:
        return round(_LEFT + across * seconds / (1.05 * longest), 2)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
        *_legend(names),
    ]
    bottom = height - _BOTTOM
    for value in round_ticks(0, 1.05 * longest):
        lines.append(f'<line class="grid" x1="{place(value)}" x2="{place(value)}" y1="{_TOP - 6}" y2="{bottom}"/>')
        lines.append(f'<text class="soft" x="{place(value)}" y="{bottom + 18}" text-anchor="middle">{value:g} s</text>')
    for number, bar in enumerate(bars):
        lines += _bar(bar, names, _TOP + ROW * number, place)
    lines.append(f'<text class="soft" x="{_LEFT}" y="{height - 8}">{escape(axis)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _legend(names: Sequence[tuple[str, str]]) -> Iterator[str]:
    left = _LEFT
    for name, colour in names:
        yield f'<rect x="{left}" y="44" width="12" height="12" fill="{colour}"/>'
        yield f'<text class="soft" x="{left + 18}" y="55">{escape(name)}</text>'
        left += 34 + 7 * len(name)


def _bar(bar: Bar, names, top: int, place) -> Iterator[str]:  # type: ignore[no-untyped-def]
    yield f'<text x="{_LEFT - 8}" y="{top + BAR - 3}" text-anchor="end">{escape(bar.name)}</text>'
    at = 0.0
    for seconds, (name, colour) in zip(bar.parts, names, strict=True):
        if seconds > 0:
            width = round(place(at + seconds) - place(at), 2)
            yield (
                f'<rect x="{place(at)}" y="{top}" width="{width}" height="{BAR}" fill="{colour}">'
                f"<title>{escape(name)}: {seconds:.2f} s</title></rect>"
            )
        at += seconds
    if bar.interval.low is not None and bar.interval.high is not None:
        middle = top + BAR / 2
        low, high = place(bar.interval.low), place(bar.interval.high)
        yield f'<line class="whisker" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
        for end in (low, high):
            yield f'<line class="whisker" x1="{end}" x2="{end}" y1="{middle - 4}" y2="{middle + 4}"/>'


def cumulative_picture(results: Sequence[Result]) -> str | None:
    """Seconds to the first step by what they went to, one technique after the other; None without runs.

    Where arms before one are not measured, its bar is named by all that is on.
    """
    bars = []
    without_gap = True
    for arm in arms.cumulative().arms:
        found = median_of(runs_of(results, arm.cell, "tts_s"))
        without_gap = without_gap and found is not None
        if found is not None:
            label = arm.label.replace("`", "") if without_gap else f"on: {arms.written(arm.cell.on)}"
            bars.append(Bar(name=label, parts=_parts(results, arm.cell, found.value), interval=found))
    if not bars:
        return None
    names = [(part.name, part.colour) for part in (*PARTS, OTHER)]
    title = "Seconds to the first completed step, one technique after the other"
    return stacked_bars(bars, names, title=title, axis="median of the runs, by what is on the critical path")


def sharding_picture(results: Sequence[Result]) -> str | None:
    """The sharding phase over the number of tables, where both arms are measured; None without two such sizes."""
    lines = []
    for ranks in (2, 4):
        both = []
        for tables in (50, 200, 400):
            off, on = (median_of(runs_of(results, arm.cell, "sharding_s")) for arm in arms.sharding(tables, ranks).arms)
            if off is not None and on is not None:
                both.append((float(tables), off.value, on.value))
        if len(both) > 1:
            lines.append(Line(name=f"all off, {ranks} ranks", points=[(tables, off) for tables, off, _ in both]))
            lines.append(Line(name=f"on, {ranks} ranks", points=[(tables, on) for tables, _, on in both]))
    if not lines:
        return None
    highest = max(value for line in lines for _, value in line.points)
    x, y = Axis(title="tables", low=0, high=420), Axis(title="seconds", low=0, high=1.1 * highest, unit=" s")
    return line_chart(lines, title="The sharding phase by number of tables", x=x, y=y)


def _parts(results: Sequence[Result], cell: arms.Cell, total: float) -> tuple[float, ...]:
    """Medians of each part; what they leave of the whole, the first step itself among it, is all else."""
    by_round = {one.round: one.measures.phases for one in results if one.cell == cell.name}
    parts = [
        statistics.median(sum(phases.get(phase.value, 0.0) for phase in part.phases) for phases in by_round.values())
        for part in PARTS
    ]
    return (*parts, max(0.0, total - sum(parts)))
