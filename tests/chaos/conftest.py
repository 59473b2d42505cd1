"""One arena a session, with one run that nothing disturbs; blows dealt to jobs there, and the record of their ends."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import pytest
from aftermath import Aftermath, examine
from arena import Arena
from blows import Blow
from chaos_job import ChaosJob
from ledger import Entry, Ledger, results_path

from ett_reports.events import Phase
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from tests.own_home import at_home
from trainer.launch.__main__ import main as terminal

SEED_VARIABLE = "ETT_CHAOS_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or 20261129)

Endure = Callable[..., Aftermath]


def pytest_report_header() -> str:
    return f"chaos: random moments by ${SEED_VARIABLE}={SEED}"


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """A home of the session's own; whatever still runs in it at the end is ended."""
    home = tmp_path_factory.mktemp("chaos")
    with at_home(home):
        arena = Arena.build(home)
    yield arena
    with at_home(home):
        terminal(["cancel", "--all"])


@pytest.fixture(autouse=True)
def at_arena(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test in the arena is at home there; the next test, of another kind, is not."""
    with at_home(request.getfixturevalue("arena").home) if "arena" in request.fixturenames else nullcontext():
        yield


@pytest.fixture(scope="session")
def undisturbed(arena: Arena) -> ChaosJob:
    """What every other job must come out as."""
    with at_home(arena.home):
        job = arena.new_job("undisturbed")
        job.finish()
    return job


@pytest.fixture(scope="session")
def seconds_in(undisturbed: ChaosJob) -> Callable[[Phase], float]:
    """How long each phase takes when nothing disturbs it, with compiled code at hand."""
    report = reduce(read_log(undisturbed.folder.events_dir))
    return lambda phase: report.busy(phase) / 1e9


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random moments, the same for the same seed and test."""
    return random.Random(f"{SEED}/{request.node.name}")


@pytest.fixture(scope="session")
def ledger() -> Ledger:
    return Ledger(results_path())


@pytest.fixture
def endure(undisturbed: ChaosJob, ledger: Ledger) -> Endure:
    """Deals a job its blows, one an attempt, until it completes, and holds it to everything that is promised.

    between   done before the attempts that nothing disturbs
    damaged   it damages a checkpoint, so that one may be passed over
    """

    def deal(
        job: ChaosJob, blows: Sequence[Blow], *, between: Callable[[], None] = lambda: None, damaged: bool = False
    ) -> Aftermath:
        dealt: list[Blow] = []
        for blow in blows:
            if job.completed:
                break
            dealt.append(blow)
            status = job.run(*blow.faults)
            told = f"{blow.name}, {blow.phase}:\n{job.told()}\n{job.log()}"
            assert not (missed := job.never_struck(status.attempt, blow.faults)), f"never reached {missed}: {told}"
            assert status.state in blow.ends, told
        between()
        job.finish()
        return settle(job, dealt, damaged=damaged)

    def settle(job: ChaosJob, blows: Sequence[Blow], *, damaged: bool) -> Aftermath:
        found = examine(job, undisturbed, damaged=damaged)
        for attempt, blow in enumerate(blows, start=1):
            ledger.add(
                Entry(
                    fault=blow.name,
                    phase=blow.phase,
                    run=job.folder.run,
                    recovered=not found.checkpoints + found.leftovers + found.account,
                    bits_equal=not found.bits,
                    rows_exact=not found.rows,
                    lost_s=found.lost_s.get(attempt),
                )
            )
        assert not found.breaches, "\n".join([*found.breaches, job.told()])
        return found

    return deal
