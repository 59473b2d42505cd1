"""Blows: what befalls one attempt of a job, in which phase of its life, and how the launcher may see it end."""

from __future__ import annotations

from dataclasses import dataclass

from injection.chaos_faults import SUPERVISOR, Action, Fault, Place

from trainer.launch import JobState

FAILED = frozenset({JobState.FAILED})
LOST = frozenset({JobState.LOST})
PREEMPTED = frozenset({JobState.PREEMPTED})
UNHARMED = frozenset({JobState.SUCCEEDED})


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One attempt's misfortune. `name` and `phase` say it in the table."""

    name: str
    phase: str
    faults: tuple[Fault, ...]
    ends: frozenset[JobState]


def kill(
    phase: str, place: Place, target: str | None = None, *, delay_s: float = 0.0, also: tuple[Fault, ...] = ()
) -> Blow:
    """SIGKILL, to the process at the place unless another is the target."""
    fault = Fault(place=place, action=Action.KILL, target=target, delay_s=delay_s)
    ends = LOST if fault.victim == SUPERVISOR else FAILED
    return Blow(name=f"kill -9 of {fault.victim}", phase=phase, faults=(*also, fault), ends=ends)


def term(
    phase: str, place: Place, target: str | None = None, *, delay_s: float = 0.0, ends: frozenset[JobState] = PREEMPTED
) -> Blow:
    """SIGTERM, likewise."""
    fault = Fault(place=place, action=Action.TERM, target=target, delay_s=delay_s)
    return Blow(name=f"SIGTERM to {fault.victim}", phase=phase, faults=(fault,), ends=ends)


def slow(place: Place, delay_s: float) -> Fault:
    """From this call on each takes that much longer."""
    return Fault(place=place, action=Action.SLOW, delay_s=delay_s, times=1_000_000)
