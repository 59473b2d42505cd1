"""Numbers as people read them: durations, shares, instants. Inputs are integer nanoseconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from fractions import Fraction

NONE = "n/a"
SECOND = 1_000_000_000


def duration(value: int | Fraction | float | None) -> str:
    """Two leading units: '0.42 s', '12.3 s', '12 min 33 s', '3 h 02 min', '2 d 04 h'."""
    if value is None:
        return NONE
    sign = "-" if value < 0 else ""
    seconds = abs(float(value)) / SECOND
    if seconds < 1:
        return f"{sign}{seconds:.2f} s" if seconds else "0 s"
    if seconds < 59.95:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{sign}{hours // 24} d {hours % 24:02d} h"


def seconds(value: int | Fraction | float | None) -> str:
    """Seconds with one decimal and thin thousands: '1 234.5'."""
    if value is None:
        return NONE
    return f"{float(value) / SECOND:,.1f}".replace(",", "\u202f")


def percent(value: float | Fraction | None) -> str:
    """A share of 1 as '71.3%'. Never rounds a lesser share up to 100% nor a greater one down to 0%."""
    if value is None:
        return NONE
    share = 100 * float(value)
    if 0 < share < 0.05:
        return "<0.1%"
    if 99.95 <= share < 100:
        return ">99.9%"
    return f"{share:.1f}%"


def share(part: int, whole: int) -> str:
    """`part` of `whole` as a percentage; n/a of nothing."""
    return percent(part / whole) if whole else NONE


def instant(unix_ns: int | None) -> str:
    """'2026-11-28 03:00:12 UTC'."""
    if unix_ns is None:
        return NONE
    return datetime.fromtimestamp(unix_ns / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(value: int | None) -> str:
    """'1 234 567'."""
    return NONE if value is None else f"{value:,}".replace(",", "\u202f")


def number(value: float | None) -> str:
    """Four significant decimals, without noise: '0.7312', '12.5', '1 024'."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return count(int(value))
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}".replace(",", "\u202f")
