"""What befalls a job, and where: plain values that reach its processes through one environment variable."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

FAULTS_VARIABLE = "ETT_CHAOS_FAULTS"
WITNESS_VARIABLE = "ETT_CHAOS_WITNESS"
ATTEMPT_VARIABLE = "ETT_CHAOS_ATTEMPT"

SPAN_START = "ett_reports.recorder:Span.__enter__"
SPAN_END = "ett_reports.recorder:Span.__exit__"
POINT = "ett_reports.recorder:Recorder.point"


class Moment(StrEnum):
    """Whether the fault comes before the call is made or after it has returned."""

    BEFORE = "before"
    AFTER = "after"


class Action(StrEnum):
    """What is done. Files are named by `path`."""

    KILL = "kill -9"
    TERM = "SIGTERM"
    STOP = "SIGSTOP"
    FILL = "full disk"
    FREE = "room on the disk"
    SLOW = "slow disk"
    HIDE = "data file vanishes"
    REWRITE = "data file rewritten in place"


SUPERVISOR = "supervisor"
"""The process that runs the job, as the place or the target of a fault; ranks are named by their number."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A call of a product function in one process of the job.

    call      "module:qualified.name"
    process   a rank's number, or SUPERVISOR
    nth       counted from 1 over the calls that match
    label     which calls match: a span's phase, a point's name, or a part of the name of the file that is written
    """

    call: str
    process: str = "0"
    moment: Moment = Moment.AFTER
    nth: int = 1
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One action at one place.

    target    which process is signalled; None = the one that is at the place
    delay_s   the action comes this much later, wherever the process is by then; for SLOW what each call takes longer
    times     how many matching calls in a row are hit
    """

    place: Place
    action: Action
    target: str | None = None
    delay_s: float = 0.0
    times: int = 1
    path: str | None = None

    @property
    def victim(self) -> str:
        """For people: whom it befalls."""
        target = self.target or self.place.process
        return SUPERVISOR if target == SUPERVISOR else f"rank {target}"


def entering(phase: str, process: str = "0", *, nth: int = 1) -> Place:
    """Right after a phase has begun, and the log says so."""
    return Place(call=SPAN_START, process=process, label=phase, nth=nth)


def leaving(phase: str, process: str = "0", *, nth: int = 1) -> Place:
    """Right after a phase has ended, and the log says so."""
    return Place(call=SPAN_END, process=process, label=phase, nth=nth)


def at_point(name: str, process: str = "0", *, nth: int = 1) -> Place:
    """Right after a fact has been recorded."""
    return Place(call=POINT, process=process, label=name, nth=nth)


def before(call: str, process: str = "0", *, nth: int = 1, label: str | None = None) -> Place:
    """Right before a call is made."""
    return Place(call=call, process=process, moment=Moment.BEFORE, nth=nth, label=label)


def after(call: str, process: str = "0", *, nth: int = 1, label: str | None = None) -> Place:
    """Right after a call has returned."""
    return Place(call=call, process=process, moment=Moment.AFTER, nth=nth, label=label)


def dumps(faults: Iterable[Fault]) -> str:
    return json.dumps([asdict(fault) for fault in faults])


def loads(text: str) -> list[Fault]:
    documents = json.loads(text)
    return [
        Fault(
            **{
                **document,
                "action": Action(document["action"]),
                "place": Place(**{**document["place"], "moment": Moment(document["place"]["moment"])}),
            }
        )
        for document in documents
    ]
