"""Jobs that are killed and preempted at chosen moments come out as if nothing had happened: the part that CI runs.

A job takes several blows, one an attempt: killed anywhere, any number of times, it must end with the same bits.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from arena import Arena
from blows import PREEMPTED, UNHARMED, kill, slow, term
from injection.chaos_faults import SUPERVISOR, before, entering, leaving
from places import (
    SAVE_BEFORE_EXIT,
    WRITE_FILE,
    anchor_commit,
    anchor_upload,
    between_steps,
    commit,
    committed,
    first_step,
    mid_step,
    retention,
    staging,
    uploaded,
)

from ett_reports.events import Phase

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

Seconds = Callable[[Phase], float]


def test_killed_and_preempted_while_it_starts(arena: Arena, endure, seconds_in: Seconds, chance: random.Random) -> None:
    def somewhere_in(phase: Phase) -> float:
        return chance.random() * seconds_in(phase)

    blows = [
        kill("process_group", entering("process_group"), delay_s=somewhere_in(Phase.PROCESS_GROUP)),
        term("train_module", entering("train_module", "1")),
        kill("compile", entering("compile"), SUPERVISOR, delay_s=somewhere_in(Phase.COMPILE)),
        kill("pre_train_setup", leaving("pre_train_setup", "1")),
    ]
    endure(arena.new_job("starting"), blows)


def test_killed_in_every_part_of_step_and_save(arena: Arena, endure) -> None:
    blows = [
        kill("first step", first_step("1")),
        kill("mid-step", mid_step("0")),
        kill("staging", staging("1")),
        kill("upload", uploaded("0")),
        kill("commit", commit()),
        kill("commit, not yet told", committed()),
        kill("retention", retention()),
        dataclasses.replace(
            kill("upload", before(WRITE_FILE, "1", nth=45), also=(slow(before(WRITE_FILE, "1", nth=30), 0.05),)),
            name="slow disk, then kill -9 of rank 1",
        ),
        kill("checkpoint_restore", leaving("checkpoint_restore", "1")),
    ]
    endure(arena.new_job("saving"), blows)


def test_preempted_and_then_killed_or_warned_again(arena: Arena, endure) -> None:
    blows = [
        term("mid-step", mid_step("1")),
        dataclasses.replace(
            kill("final checkpoint after SIGTERM", entering("final_checkpoint")),
            faults=(*term("", between_steps(), SUPERVISOR).faults, *kill("", entering("final_checkpoint")).faults),
            ends=PREEMPTED,
        ),
        dataclasses.replace(
            term("slow final checkpoint, the second SIGTERM", between_steps("0", nth=20)),
            faults=(
                slow(before(SAVE_BEFORE_EXIT), 4.0),
                *term("", between_steps("0", nth=20)).faults,
                *term("", entering("final_checkpoint", "0"), delay_s=1.5).faults,
            ),
        ),
        kill("mid-step", mid_step("0"), SUPERVISOR),
        kill("mid-step", mid_step("0", nth=5), SUPERVISOR),
    ]
    endure(arena.new_job("preempted"), blows)


def test_killed_while_it_ends(arena: Arena, endure) -> None:
    blows = [
        kill("evaluation", entering("evaluation", "1")),
        kill("anchor: upload", anchor_upload("1")),
        kill("anchor: commit", anchor_commit()),
        kill("teardown", entering("teardown")),
    ]
    endure(arena.new_job("ending"), blows)


def test_ranks_that_outlive_their_supervisor_may_complete_the_run(arena: Arena, endure) -> None:
    endure(arena.new_job("unsupervised"), [kill("anchor: staging", entering("final_checkpoint"), SUPERVISOR)])


def test_warned_too_late_to_be_stopped(arena: Arena, endure) -> None:
    endure(arena.new_job("warned-late"), [term("evaluation", entering("evaluation", "1"), ends=UNHARMED)])
