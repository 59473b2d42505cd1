"""The whole matrix: every fault at every phase boundary and at random moments in every startup stage (`make chaos`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from arena import Arena
from blows import PREEMPTED, UNHARMED, Blow, kill, term
from injection.chaos_faults import SUPERVISOR, Place, entering, leaving
from places import (
    SHUTDOWN,
    STARTUP,
    SUPERVISOR_PLACES,
    between_steps,
    commit,
    committed,
    first_step,
    mid_step,
    retention,
    stage_file,
    staging,
    upload,
    uploaded,
)

from ett_reports.events import Phase

pytestmark = [pytest.mark.chaos, pytest.mark.soak, pytest.mark.integration, pytest.mark.timeout(3600)]

Seconds = Callable[[Phase], float]
Strike = Callable[..., Blow]

VICTIMS = ("0", "1", SUPERVISOR)
STRIKES = {"kill": kill, "term": term}
BEFORE_THE_ANCHOR = list(SHUTDOWN)[:4]
AFTER_THE_ANCHOR = list(SHUTDOWN)[4:]

with_every_victim = pytest.mark.parametrize("victim", VICTIMS)
with_every_strike = pytest.mark.parametrize("strike", STRIKES.values(), ids=STRIKES)


def named(phase: str) -> str:
    """A phase as a part of a run's name."""
    return phase.replace(": ", "-").replace(" ", "-")


def seen_from(victim: str) -> str:
    """The rank in which the blow is triggered."""
    return "0" if victim == SUPERVISOR else victim


@with_every_strike
@with_every_victim
def test_at_every_boundary_of_startup(arena: Arena, endure, strike: Strike, victim: str) -> None:
    rank = seen_from(victim)
    blows = [strike(f"{phase}, begin", entering(phase, rank), victim) for phase in STARTUP]
    blows.append(strike(f"{STARTUP[-1]}, end", leaving(STARTUP[-1], rank), victim))
    endure(arena.new_job(f"boundaries-{strike.__name__}-{victim}"), blows)


@with_every_strike
@with_every_victim
def test_at_random_moments_of_startup(
    arena: Arena, endure, strike: Strike, victim: str, seconds_in: Seconds, chance: random.Random
) -> None:
    blows = []
    for phase in STARTUP:
        delay_s = round(chance.random() * seconds_in(Phase(phase)), 3)
        blows.append(strike(f"{phase}, random", entering(phase, seen_from(victim)), victim, delay_s=delay_s))
    endure(arena.new_job(f"random-{strike.__name__}-{victim}"), blows)


@with_every_strike
@with_every_victim
def test_in_every_part_of_step_and_save(
    arena: Arena, endure, strike: Strike, victim: str, chance: random.Random
) -> None:
    rank = seen_from(victim)
    places: list[tuple[str, Place]] = [
        ("first step", first_step(rank)),
        ("first step", first_step(rank)),  # twice in a row, with nothing gained in between
        ("mid-step", mid_step(rank)),
        ("mid-step", mid_step(rank, nth=chance.randint(2, 25))),
        ("between steps", between_steps(rank)),
        ("staging", staging(rank)),
        ("upload, begin", upload(rank)),
        ("upload, end", uploaded(rank)),
        ("commit", commit()),
        ("commit, not yet told", committed()),
        ("retention", retention()),
        ("stage file", stage_file()),
    ]
    blows = [strike(phase, place, victim) for phase, place in places]
    endure(arena.new_job(f"loop-{strike.__name__}-{victim}"), blows)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_killed_before_the_anchor_is_durable(arena: Arena, endure, rank: str) -> None:
    endure(arena.new_job(f"anchor-{rank}"), [kill(phase, SHUTDOWN[phase](rank)) for phase in BEFORE_THE_ANCHOR])


@pytest.mark.parametrize("phase", AFTER_THE_ANCHOR)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_killed_after_the_anchor_is_durable(arena: Arena, endure, rank: str, phase: str) -> None:
    endure(arena.new_job(f"anchored-{rank}-{named(phase)}"), [kill(phase, SHUTDOWN[phase](rank))])


@pytest.mark.parametrize("phase", SHUTDOWN)
def test_the_supervisor_killed_while_the_ranks_end(arena: Arena, endure, phase: str) -> None:
    """They go on without it, and may have completed the run before the next attempt ends them."""
    endure(arena.new_job(f"unsupervised-{named(phase)}"), [kill(phase, SHUTDOWN[phase]("0"), SUPERVISOR)])


@pytest.mark.parametrize("phase", SHUTDOWN)
@with_every_victim
def test_preempted_while_it_ends(arena: Arena, endure, victim: str, phase: str) -> None:
    """Too late to stop it: the anchor is quicker than the grace time."""
    place = SHUTDOWN[phase](seen_from(victim))
    endure(arena.new_job(f"late-{victim}-{named(phase)}"), [term(phase, place, victim, ends=UNHARMED | PREEMPTED)])


def test_the_supervisor_killed_in_its_own_phases(arena: Arena, endure) -> None:
    endure(arena.new_job("supervisor"), [kill(f"supervisor: {phase}", at) for phase, at in SUPERVISOR_PLACES.items()])


@with_every_victim
def test_killed_at_any_moment(arena: Arena, endure, victim: str, seconds_in: Seconds, chance: random.Random) -> None:
    """Ten attempts, each killed anywhere between its start and the end that an undisturbed one would have had."""
    whole_s = sum(seconds_in(Phase(phase)) for phase in (*STARTUP, Phase.STEP))
    start = entering("launcher_init", seen_from(victim))
    blows = [kill("any moment", start, victim, delay_s=round(chance.random() * whole_s, 3)) for _ in range(10)]
    endure(arena.new_job(f"anytime-{victim}"), [replace(blow, ends=blow.ends | UNHARMED) for blow in blows])
