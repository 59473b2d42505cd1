"""A line chart as one standalone SVG, such as Fig. 3: no library, no script, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 130, 56, 56
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "1 5")

_NAMES = "".join(f".name-{number} {{ fill: {colour}; }} " for number, colour in enumerate(_COLOURS))

_STYLE = """
svg { background: #ffffff; } text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #16191d; }
.title { font-size: 16px; font-weight: 600; } .soft { fill: #565f6b; }
.grid { stroke: #e2e6eb; } .axis { stroke: #8a939e; }
.line { fill: none; stroke-width: 2.25; } .dot { stroke: #ffffff; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  svg { background: #181c21; } text { fill: #eceff2; } .soft { fill: #a5afba; } .grid { stroke: #2c333b; }
  .axis { stroke: #6b7580; } .dot { stroke: #181c21; }
}
"""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve; mark is a point of it to point out, with its text."""

    name: str
    points: Sequence[tuple[float, float]]
    mark: tuple[float, float] | None = None
    mark_text: str = ""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A title and the range shown; unit follows each tick's number."""

    title: str
    low: float
    high: float
    unit: str = ""


def line_chart(lines: Sequence[Line], *, title: str, x: Axis, y: Axis) -> str:
    """The SVG document. Points outside the ranges are cut off at the frame."""
    across = WIDTH - _LEFT - _RIGHT
    down = HEIGHT - _TOP - _BOTTOM

    def place(point: tuple[float, float]) -> tuple[float, float]:
        left = _LEFT + across * (point[0] - x.low) / (x.high - x.low)
        top = _TOP + down * (1 - (point[1] - y.low) / (y.high - y.low))
        return round(left, 2), round(top, 2)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{_attribute(title)}">',
        f"<style>{_STYLE}{_NAMES}</style>",
        f'<text class="title" x="{_LEFT}" y="30">{escape(title)}</text>',
        f'<clipPath id="frame"><rect x="{_LEFT}" y="{_TOP}" width="{across}" height="{down}"/></clipPath>',
        *_grid(x, y, place),
    ]
    lowest = -math.inf
    for number, line in sorted(enumerate(lines), key=lambda item: -item[1].points[-1][1]):
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        path = " ".join(f"{left},{top}" for left, top in map(place, line.points))
        parts.append(
            f'<polyline class="line" clip-path="url(#frame)" stroke="{colour}" stroke-dasharray="{dash}" '
            f'points="{path}"/>'
        )
        top = max(place(line.points[-1])[1], lowest + 17)
        lowest = top
        parts.append(
            f'<text x="{WIDTH - _RIGHT + 8}" y="{top + 4}" class="name-{number % len(_COLOURS)}">'
            f"{escape(line.name)}</text>"
        )
        if line.mark is not None:
            left, at = place(line.mark)
            parts.append(f'<circle class="dot" cx="{left}" cy="{at}" r="5" fill="{colour}"/>')
            parts.append(
                f'<text class="soft" x="{left}" y="{at - 10}" text-anchor="middle">{escape(line.mark_text)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def round_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten within the range."""
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _grid(x: Axis, y: Axis, place):  # type: ignore[no-untyped-def]
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in round_ticks(y.low, y.high):
        top = place((x.low, value))[1]
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{top}" y2="{top}"/>'
        yield f'<text class="soft" x="{_LEFT - 8}" y="{top + 4}" text-anchor="end">{value:g}{escape(y.unit)}</text>'
    for value in round_ticks(x.low, x.high):
        left = place((value, y.low))[0]
        yield f'<line class="axis" x1="{left}" x2="{left}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text class="soft" x="{left}" y="{bottom + 20}" text-anchor="middle">{value:g}{escape(x.unit)}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    centre = (_LEFT + right) / 2
    yield f'<text class="soft" x="{centre}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x.title)}</text>'
    yield f'<text class="soft" x="{_LEFT}" y="{_TOP - 8}">{escape(y.title)}</text>'


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})
