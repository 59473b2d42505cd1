"""Single event lines: JSON objects of the published schema -> records; what does not fit is refused."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Any

from ett_reports.events import DERIVED_PHASES, EventError, Kind, Phase, ProcessIdentity, Source
from ett_reports.log import ClockPair, PointRecord, SpanRecord, StepWindow, Sweep

LIMIT = 1 << 63

_NO_ATTRS: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A process line."""

    identity: ProcessIdentity
    host: str
    pair: ClockPair


Record = Header | ClockPair | SpanRecord | PointRecord | StepWindow | Sweep


class InvalidEventError(ValueError):
    """A line that is JSON but not an event of the schema."""


class UnknownPhaseError(InvalidEventError):
    """A span of a leaf that this version does not know."""


class UnknownKindError(InvalidEventError):
    """A kind of line that this version does not know."""


def parse_event(event: dict[str, Any], process: str) -> Record:
    """The record of one line. Raises InvalidEventError, or one of its kinds, for what does not fit the schema."""
    match event.get("kind"):
        case Kind.OPEN | Kind.SPAN:
            return parse_span(event, process)
        case Kind.STEPS:
            return parse_steps(event, closed=True)
        case Kind.POINT:
            return parse_point(event)
        case Kind.CLOCK:
            return parse_pair(event, final=False)
        case Kind.END:
            return parse_pair(event, final=True)
        case Kind.PROCESS:
            return Header(
                identity=parse_identity(event), host=text(event, "host") or "", pair=parse_pair(event, final=False)
            )
        case Kind.SWEEP:
            window = parse_steps(event, closed=False) if event.get("end_ns") else None
            return Sweep(heartbeat_ns=integer(event, "heartbeat_ns"), window=window)
        case _:
            raise UnknownKindError(str(event.get("kind"))[:80])


def parse_pair(event: dict[str, Any], *, final: bool) -> ClockPair:
    return ClockPair(wall_ns=integer(event, "wall_ns"), mono_ns=integer(event, "mono_ns"), final=final)


def integer(event: dict[str, Any], name: str) -> int:
    """A required non-negative 64-bit integer."""
    value = event.get(name)
    if type(value) is not int or not 0 <= value < LIMIT:
        raise InvalidEventError(f"{name} must be a non-negative 64-bit integer")
    return value


def optional_integer(event: dict[str, Any], name: str) -> int | None:
    return None if event.get(name) is None else integer(event, name)


def text(event: dict[str, Any], name: str) -> str | None:
    value = event.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidEventError(f"{name} must be a string")
    return value


def attributes(event: dict[str, Any]) -> dict[str, Any]:
    value = event.get("attrs") or _NO_ATTRS
    if not isinstance(value, dict):
        raise InvalidEventError("attrs must be an object")
    return value


def parse_identity(event: dict[str, Any]) -> ProcessIdentity:
    job, process = text(event, "job"), text(event, "process")
    if not job or not process:
        raise InvalidEventError("a process line needs job and process")
    try:
        return ProcessIdentity(
            job=job,
            process=process,
            source=Source(event.get("source", "")),
            attempt=optional_integer(event, "attempt"),
            rank=optional_integer(event, "rank"),
            world_size=optional_integer(event, "world_size"),
            devices=optional_integer(event, "devices"),
            task=text(event, "task"),
        )
    except (EventError, ValueError, TypeError) as error:
        raise InvalidEventError(str(error)) from error


def parse_span(event: dict[str, Any], process: str) -> SpanRecord:
    """An `open` (no end) or a `span` line."""
    start, end = integer(event, "start_ns"), optional_integer(event, "end_ns")
    if end is not None and end < start:
        raise InvalidEventError("a span ends before it starts")
    waits = event.get("waits_for") or []
    if not isinstance(waits, list):
        raise InvalidEventError("waits_for must be a list")
    try:
        phase = Phase(event.get("phase", ""))
    except (ValueError, TypeError):
        raise UnknownPhaseError(str(event.get("phase"))[:80]) from None
    if phase in DERIVED_PHASES:
        raise InvalidEventError(f"{phase} is never recorded as a span")
    thread = text(event, "thread")
    return SpanRecord(
        id=integer(event, "id"),
        phase=phase,
        start_ns=start,
        end_ns=end,
        thread=None if thread is None else sys.intern(thread),
        waits_for=tuple(f"{process}#{item}" if type(item) is int else str(item) for item in waits),
        failed=event.get("error") is not None,
        attrs=attributes(event),
    )


def parse_point(event: dict[str, Any]) -> PointRecord:
    name = text(event, "name")
    if not name:
        raise InvalidEventError("a point needs a name")
    return PointRecord(
        sequence=integer(event, "seq"),
        name=sys.intern(name),
        mono_ns=integer(event, "mono_ns"),
        wall_ns=optional_integer(event, "wall_ns"),
        attrs=attributes(event),
    )


def parse_steps(event: dict[str, Any], *, closed: bool) -> StepWindow:
    """A window of steps; its end_ns are offsets from start_ns, never decreasing."""
    start = integer(event, "start_ns")
    ends, cursors = _integers(event, "end_ns"), _integers(event, "cursor")
    waits = _integers(event, "data_wait_ns") if event.get("data_wait_ns") else ()
    if len(ends) != len(cursors) or (waits and len(waits) != len(ends)):
        raise InvalidEventError("end_ns, cursor and data_wait_ns must be of one length")
    if any(later < earlier for earlier, later in itertools.pairwise(ends)):
        raise InvalidEventError("steps must end in order")
    return StepWindow(
        window=integer(event, "window"),
        start_ns=start,
        cursor_start=optional_integer(event, "cursor_start"),
        end_ns=tuple(start + end for end in ends),
        cursor=cursors,
        data_wait_ns=waits or (0,) * len(ends),
        thread=text(event, "thread"),
        closed=closed,
    )


def _integers(event: dict[str, Any], name: str) -> tuple[int, ...]:
    values = event.get(name)
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < LIMIT for value in values):
        raise InvalidEventError(f"{name} must be a list of non-negative integers")
    return tuple(values)
