"""Measures every startup technique on real attempts, and writes docs/startup.md.

`python -m tests.benchmarks.startup.bench COMMAND`:

    run      one round after the other, each arm once a round, in an order of its own; appended to --results
    report   what --results has, as tables and pictures in the docs (--print: to the terminal only)
    list     the arms of every experiment, and how many runs each has

A run that was stopped goes on where it was. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.startup import arms, tables
from tests.benchmarks.startup.arms import Cell
from tests.benchmarks.startup.attempts import AttemptError, Bench
from tests.benchmarks.startup.goals import judge
from tests.benchmarks.startup.measures import Measures
from tests.benchmarks.startup.pictures import cumulative_picture, sharding_picture
from tests.benchmarks.startup.results import REPOSITORY, Machine, Result, Results, code_identity
from tests.generated_part import into
from trainer.run_folder import home

ROUNDS = 5
ORDER_SEED = 20_260_302
DOCUMENT = REPOSITORY / "docs" / "startup.md"
COLLECTIVES = "collectives.md"


def in_rounds(cells: Sequence[Cell], rounds: int, done: dict[str, set[int]]) -> list[tuple[int, Cell]]:
    """What is left to run: each cell once a round, those the goals need first, each part shuffled by the round.

    >>> cell = Cell(on=frozenset())
    >>> [number for number, _ in in_rounds([cell], 3, {cell.name: {0}})]
    [1, 2]
    """
    goal_cells = set(arms.cells_of(one for one in arms.EXPERIMENTS if one.name in arms.FIRST))
    left: list[tuple[int, Cell]] = []
    for wanted in (True, False):
        for number in range(rounds):
            order = [cell for cell in cells if (cell in goal_cells) is wanted]
            random.Random(ORDER_SEED + number).shuffle(order)
            left += [(number, cell) for cell in order if number not in done.get(cell.name, set())]
    return left


def run(options: argparse.Namespace) -> int:
    """Measure until all is measured or the minutes are over; a cell that fails is told and tried again next time."""
    results, bench, machine = Results(options.results), Bench(options.folder), Machine.here()
    others = {one.machine for one in results.all()} - {machine}
    if others:
        print(f"error: {options.results} is of another machine ({', '.join(map(str, others))}); give --results")
        return 2
    until = time.monotonic() + 60 * options.minutes
    failed: set[str] = set()
    left = in_rounds(_cells(options), options.rounds, _done(results))
    for position, (number, cell) in enumerate(left):
        if cell.name in failed:
            continue
        if time.monotonic() > until:
            print(f"{len(left) - position} runs are left; the same command goes on with them")
            return 0
        load, began = os.getloadavg()[0], time.monotonic()
        code = code_identity()
        try:
            measures = bench.measure(cell, run=f"r{number}-{time.time_ns()}")
        except AttemptError as error:
            failed.add(cell.name)
            print(f"FAILED {cell.name}: {error}", file=sys.stderr)
            continue
        found = Result(cell=cell.name, round=number, machine=machine, load=load, code=code, measures=measures)
        results.add(found)
        print(f"round {number} {cell.name}: {_told(measures)} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if failed else 0


def report(options: argparse.Namespace) -> int:
    """Write tables and pictures, and print the goals."""
    results = Results(options.results).all()
    if not results:
        print(f"error: no results in {options.results}; run `make bench-startup`", file=sys.stderr)
        return 1
    counted = options.results.parent / COLLECTIVES
    text = tables.page(results, collectives=_tables_in(counted.read_text()) if counted.exists() else "")
    if options.print:
        print(text)
        return 0
    before = options.document.read_text(encoding="utf-8")
    options.document.write_text(into(before, text, begin=tables.BEGIN, end=tables.END), encoding="utf-8")
    pictures = options.document.parent / "pictures"
    for name, picture in (("cumulative", cumulative_picture(results)), ("sharding", sharding_picture(results))):
        if picture is not None:
            (pictures / f"startup-{name}.svg").write_text(picture, encoding="utf-8")
    for judged in judge(results):
        print(f"{judged.goal.text}: {judged.word}")
    return 0


def list_arms(options: argparse.Namespace) -> int:
    """Every arm, the name of its cell, and the number of its runs."""
    done = _done(Results(options.results))
    for experiment in arms.chosen(options.cells):
        print(f"{experiment.name}: {experiment.title}")
        for arm in experiment.arms:
            print(f"  {len(done.get(arm.cell.name, ())):3} runs  {arm.label:34} {arm.cell.name}")
    print(f"{len(_cells(options))} cells")
    return 0


def _told(measures: Measures) -> str:
    """The one line of a run on the terminal."""
    if measures.tts_s is None:
        return f"sharding {measures.sharding_s or 0:.2f} s"
    compiling = f"compile {measures.compile_busy_s or 0:.1f} s, archive hit {measures.archive_hit}"
    return f"first step after {measures.tts_s:.1f} s, {measures.start} ranks, {compiling}"


def _cells(options: argparse.Namespace) -> list[Cell]:
    return arms.cells_of(arms.chosen(options.cells))


def _done(results: Results) -> dict[str, set[int]]:
    done: dict[str, set[int]] = {}
    for one in results.all():
        done.setdefault(one.cell, set()).add(one.round)
    return done


def _tables_in(text: str) -> str:
    """The Markdown tables of what a script printed."""
    return "\n".join(line for line in text.splitlines() if line.startswith("|"))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
    for name, action in (("run", run), ("report", report), ("list", list_arms)):
        command = commands.add_parser(name, help=action.__doc__)
        command.set_defaults(action=action)
        folder = home() / "bench-startup"
        command.add_argument("--folder", type=Path, default=folder, help="where data and runs are kept")
        command.add_argument("--results", type=Path, default=folder / "results.jsonl")
        command.add_argument(
            "--cells",
            type=lambda text: [part for part in text.split(",") if part],
            default=[],
            help="experiments by the beginning of their names, with commas; all of them by default",
        )
    running, reporting = commands.choices["run"], commands.choices["report"]
    running.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each arm")
    running.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so long")
    reporting.add_argument("--document", type=Path, default=DOCUMENT)
    reporting.add_argument("--print", action="store_true", help="to the terminal, nothing is written")
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        status: int = options.action(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
