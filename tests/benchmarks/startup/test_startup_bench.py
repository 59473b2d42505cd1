"""The startup benchmark itself: arms, intervals, what it reads from a log, and that a stopped one goes on."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from ett_reports.events import Phase
from ett_reports.reader import read_log
from tests.benchmarks.startup import arms, attempts, bench, tables
from tests.benchmarks.startup.arms import ALL, IDLE, IN_ORDER, NONE, Cell
from tests.benchmarks.startup.attempts import Bench
from tests.benchmarks.startup.estimates import Interval, Verdict, median_of, ratio_of
from tests.benchmarks.startup.goals import judge
from tests.benchmarks.startup.measures import Measures, measures_of
from tests.benchmarks.startup.pictures import cumulative_picture, sharding_picture
from tests.benchmarks.startup.rank_modules import late_source
from tests.benchmarks.startup.refresh import ground_of, spec_of
from tests.benchmarks.startup.results import REPOSITORY, Machine, Result, Results, code_identity, runs_of
from tests.ett_reports.story import Story
from tests.generated_part import into
from trainer.optimizations import Preset, Technique
from trainer.run_folder import RunFolder
from trainer.run_info import WarmStart

MACHINE = Machine(processor="Test <CPU>", cores=2, memory_gib=4, system="Linux 6")


def result(cell: Cell, number: int, **measures: object) -> Result:
    made = Measures(**{"phases": {}, **measures})  # type: ignore[arg-type]
    return Result(cell=cell.name, round=number, machine=MACHINE, load=0.1, code="c0de", measures=made)


# -- arms -------------------------------------------------------------------------------------------------------------


def test_arms_go_from_all_off_to_all_on_in_the_papers_order_and_leave_out_each_technique_once() -> None:
    at_work = [technique for technique in IN_ORDER if technique not in IDLE]
    on = [arm.cell.on for arm in arms.cumulative().arms]
    assert on[0] == NONE
    assert on[-1] == ALL
    assert [set(after - before) - IDLE for before, after in pairwise(on)] == [{technique} for technique in at_work]
    left_out = [ALL - arm.cell.on for arm in arms.leave_one_out().arms]
    assert left_out == [frozenset(), *(frozenset({technique}) for technique in at_work)]


def test_cells_have_names_of_their_own_and_shared_ones_run_once() -> None:
    cells = arms.cells_of(arms.EXPERIMENTS)
    assert len({cell.name for cell in cells}) == len(cells) == len(set(cells))
    shared = arms.cells_of([arms.cumulative(), arms.leave_one_out()])
    assert len(shared) == 2 * (len(IN_ORDER) - len(IDLE))  # all on, and all on but the last, are in both


@pytest.mark.parametrize("cell", arms.cells_of(arms.EXPERIMENTS), ids=lambda cell: cell.name)
def test_every_cell_is_a_valid_refresh_with_just_its_techniques_on(cell: Cell) -> None:
    spec = spec_of(cell)
    assert {technique for technique in Technique if spec.optimizations.enabled(technique)} == cell.on
    assert len({column.table_name for column in spec.contract.sparse}) == cell.tables
    assert spec.resources.ranks == cell.ranks


def test_all_off_is_the_baseline_preset_and_all_on_the_optimized_one_but_for_what_is_off_by_default() -> None:
    spec = spec_of(Cell(on=NONE))
    preset = spec.optimizations.model_copy(update={"preset": Preset.BASELINE})
    assert spec.optimizations.resolved() == preset.resolved() == dict.fromkeys(map(str, Technique), False)


def test_arms_that_would_archive_other_code_never_share_archives() -> None:
    """An arm without `stable_keys` that wrote the archive of all on would spoil every later run of that."""
    without = {technique: ground_of(Cell(on=ALL - {technique})) for technique in Technique}
    assert without[Technique.WARM_STANDBY] == without[Technique.PLAN_CACHE] == ground_of(Cell(on=ALL))
    apart = [without[one] for one in (Technique.STABLE_KEYS, Technique.DYNAMIC_SHAPES, Technique.FAST_BATCH)]
    assert len({*apart, ground_of(Cell(on=ALL)), without[Technique.ARTIFACT_CACHE]}) == 5


def test_a_wrong_experiment_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["list", "--cells", "cumulative,tps"]) == 2
    assert "'tps'" in capsys.readouterr().err


# -- intervals --------------------------------------------------------------------------------------------------------


def test_equal_arms_are_indistinguishable_and_halved_ones_are_not() -> None:
    off = {0: 10.0, 1: 12.0, 2: 11.0, 3: 10.5, 4: 11.5}
    shuffled = dict(zip(off, (11.0, 10.0, 12.0, 11.5, 10.5), strict=True))
    equal, halved = ratio_of(shuffled, off), ratio_of({number: value / 2 for number, value in off.items()}, off)
    assert equal is not None and halved is not None
    assert equal.verdict is Verdict.INDISTINGUISHABLE
    # The host's drift is the same for both arms of a round, and cancels exactly.
    assert (halved.value, halved.low, halved.high) == (0.5, 0.5, 0.5)
    assert halved.verdict is Verdict.FASTER
    doubled = ratio_of(off, {number: value / 2 for number, value in off.items()})
    assert doubled is not None and doubled.verdict is Verdict.SLOWER


def test_a_ratio_is_over_common_rounds_and_two_runs_decide_nothing() -> None:
    found = ratio_of({0: 1.0, 1: 1.0, 7: 90.0}, {0: 2.0, 1: 2.0, 3: 70.0})
    assert found == Interval(value=0.5, low=None, high=None, count=2)
    assert found.verdict is Verdict.UNDECIDED
    assert ratio_of({0: 1.0}, {1: 1.0}) is None


def test_the_interval_of_a_median_covers_it_and_is_the_same_each_time() -> None:
    five = median_of({number: float(number) for number in range(5)})
    assert five == Interval(value=2.0, low=0.0, high=4.0, count=5)
    many = {number: float(number % 17) for number in range(40)}
    assert median_of(many) == median_of(many)
    assert median_of({}) is None


# -- what a log says --------------------------------------------------------------------------------------------------


def told_log(folder: Path) -> None:
    """Two ranks; the second is late. Compilation runs beside the sharding, and once more in the loop."""
    story = Story(folder)
    story.submit(1, 0)
    for rank, late in ((0, 0.0), (1, 2.0)):
        trainer = story.trainer(1, 3, rank, 2)
        trainer.phase(Phase.LAUNCHER_INIT, 3, 6)
        trainer.phase(Phase.TRAIN_MODULE, 6, 7)  # the model
        trainer.phase(Phase.TRAIN_MODULE, 7, 10, plan="cached")
        trainer.phase(Phase.COMPILE, 10, 20 + late)
        trainer.at(20 + late).begin(cursor=0)
        trainer.steps(1, seconds=6 - late)  # rank 0 waits for rank 1 in its first step
        trainer.steps(19, seconds=1)
        trainer.steps(10, seconds=0.5)
        trainer.phase(Phase.RECOMPILE, 30, 31)
        trainer.finish()


def test_measures_are_those_of_the_log(tmp_path: Path) -> None:
    told_log(tmp_path)
    found = measures_of(read_log(tmp_path), attempt=1)
    assert found.tts_s == 26  # submitted at 0, the first step ends at 26 on both ranks
    assert found.first_step_s == 4  # without the wait for the last rank
    assert found.sharding_s == 4
    assert found.compile_busy_s == 13  # 12 of the late rank's start, 1 in the loop
    assert found.step_s == 0.5
    assert (found.recompilations, found.plan) == (1, "cached")
    assert found.phases["compile"] == 12
    assert found.phases["launcher_init"] >= 3
    assert sum(found.phases.values()) == pytest.approx(22)


def test_an_attempt_that_is_not_in_the_log_is_an_error(tmp_path: Path) -> None:
    told_log(tmp_path)
    with pytest.raises(ValueError, match="no attempt 2"):
        measures_of(read_log(tmp_path), attempt=2)


# -- results ----------------------------------------------------------------------------------------------------------


def test_results_survive_a_torn_line_and_what_is_left_goes_on_from_them(tmp_path: Path) -> None:
    results, cells = Results(tmp_path / "deep" / "results.jsonl"), arms.cells_of([arms.cumulative()])
    results.add(result(cells[0], 0, tts_s=9.0))
    with results.path.open("a") as file:
        file.write('{"cell": "train.dlrm')  # killed in mid-write
    assert results.rounds_of(cells[0]) == {0}
    results.add(result(cells[0], 1, tts_s=8.0))
    assert runs_of(results.all(), cells[0], "tts_s") == {0: 9.0, 1: 8.0}
    left = bench.in_rounds(cells, 3, {cells[0].name: results.rounds_of(cells[0])})
    assert len(left) == 3 * len(cells) - 2
    assert left == bench.in_rounds(cells, 3, {cells[0].name: {0, 1}})  # the order is the same each time
    first, second = ([cell for number, cell in left if number == one and cell != cells[0]] for one in (0, 1))
    assert set(first) == set(second) and first != second


def test_results_of_another_machine_are_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(tmp_path / "results.jsonl")
    results.add(result(Cell(on=NONE), 0, tts_s=9.0))
    assert bench.main(["run", "--results", str(results.path), "--folder", str(tmp_path), "--minutes", "0"]) == 2
    assert "another machine" in capsys.readouterr().out


def test_with_the_minutes_over_nothing_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--results", str(tmp_path / "r.jsonl"), "--folder", str(tmp_path), "--cells", "restart"]
    assert bench.main(["run", *given, "--minutes", "-1", "--rounds", "3"]) == 0
    assert "6 runs are left" in capsys.readouterr().out


# -- tables and pictures ----------------------------------------------------------------------------------------------


def tts_after(techniques: int) -> float:
    """From 40 s to 12 s."""
    return 40.0 - 28.0 * techniques / (len(IN_ORDER) - len(IDLE))


def measured() -> list[Result]:
    found = []
    for number in range(5):
        for place, arm in enumerate(arms.cumulative().arms):
            seconds = tts_after(place) + 0.1 * number
            phases = {"compile": seconds / 2, "launcher_init": 4.0}
            found.append(
                result(
                    arm.cell,
                    number,
                    tts_s=seconds,
                    step_s=0.004,
                    compile_busy_s=seconds / 2,
                    sharding_s=1.0,
                    phases=phases,
                )
            )
        for size in (50, 200):
            for share, arm in zip((1.0, 0.5), arms.sharding(size, 2).arms, strict=True):
                found.append(result(arm.cell, number, sharding_s=size * share))
    return found


def test_page_has_the_tables_of_what_was_run_and_names_machine_and_verdicts() -> None:
    text = tables.page(measured(), collectives="| kind | count |\n| --- | ---: |")
    assert "Test <CPU>, 2 cores, 4 GiB" in text
    first = tts_after(1)
    assert f"| + `local_metadata` | {first + 0.2:.1f} ({first:.1f} to {first + 0.4:.1f}) |" in text
    assert re.search(r"\| TTS \| -65% \| -41% \| -\d\d\.\d% .*\| met", text)
    assert "| restart to the first completed step | -75% | none |  | not measured |" in text
    assert "50 tables on 2 ranks" in text
    assert "Data that come late" not in text  # nothing was run of it
    assert "### Collectives at 128 ranks" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_goals_are_judged_by_the_interval() -> None:
    off, on = arms.restart().arms[0].cell, arms.restart().arms[1].cell
    told = {}
    for name, values in {
        "sure": (2.0, 2.1, 2.0, 2.2, 2.0),
        "unsure": (2.0, 3.0, 2.0, 3.0, 2.0),
        "missed": (5.0,) * 5,
    }.items():
        found = [result(off, number, tts_s=10.0) for number in range(5)]
        found += [result(on, number, tts_s=value) for number, value in enumerate(values)]
        told[name] = judge(found)[-1].word
    assert told == {"sure": "met", "unsure": "met, not surely", "missed": "missed"}


def test_pictures_are_well_formed_and_bars_are_as_long_as_the_medians() -> None:
    picture, lines = cumulative_picture(measured()), sharding_picture(measured())
    assert picture is not None and lines is not None
    xml.etree.ElementTree.fromstring(lines)
    root = xml.etree.ElementTree.fromstring(picture)
    bars = [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.find("{*}title") is not None]
    by_row: dict[str, float] = {}
    for rect in bars:
        by_row[rect.attrib["y"]] = by_row.get(rect.attrib["y"], 0.0) + float(rect.attrib["width"])
    lengths = list(by_row.values())
    assert len(lengths) == len(arms.cumulative().arms)
    assert lengths[1] / lengths[0] == pytest.approx((tts_after(1) + 0.2) / 40.2, abs=0.002)
    assert cumulative_picture([]) is None and sharding_picture([]) is None
    one_arm = [one for one in measured() if not (one.cell.startswith("shard") and one.cell.endswith("none"))]
    assert sharding_picture(one_arm) is None


def test_report_replaces_what_stands_between_the_marks_only(tmp_path: Path) -> None:
    results, page = Results(tmp_path / "results.jsonl"), tmp_path / "startup.md"
    (tmp_path / "pictures").mkdir()
    for one in measured():
        results.add(one)
    page.write_text(f"before\n{tables.BEGIN}\nstale\n{tables.END}\nafter\n")
    given = ["report", "--results", str(results.path), "--document", str(page)]
    assert bench.main(given) == 0
    once = page.read_text()
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "stale" not in once
    assert bench.main(given) == 0
    assert page.read_text() == once
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {
        "startup-cumulative.svg",
        "startup-sharding.svg",
    }
    page.write_text("no marks")
    assert bench.main(given) == 2


def test_the_page_of_the_docs_has_a_place_for_the_results() -> None:
    into(bench.DOCUMENT.read_text(encoding="utf-8"), "", begin=tables.BEGIN, end=tables.END)


# -- the day before ---------------------------------------------------------------------------------------------------


def test_every_arm_finds_the_day_before_and_nothing_of_another_arms_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str, str | None]] = []

    def attempt(self: Bench, cell: Cell, run: str, anchor: WarmStart | None) -> Measures:
        ran.append((ground_of(cell), run.partition("-")[0], None if anchor is None else anchor.anchor))
        cache = RunFolder.of(ground_of(cell), run, self.root / "runs").compile_cache_dir
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "plan.json").write_text(ground_of(cell))
        if run.startswith("fills"):
            self.kept_folder(cell).mkdir(parents=True)
        return Measures(phases={})

    monkeypatch.setattr(Bench, "_attempt", attempt)
    monkeypatch.setattr(attempts, "code_identity", lambda: "one")
    bench_here, base = Bench(tmp_path), ground_of(Cell(on=ALL))
    anchor = str(tmp_path / "runs" / base / "seed" / "anchor")
    kept = arms.regimes(arms.Architecture.DLRM).arms[-1].cell
    cells = [Cell(on=NONE), Cell(on=ALL), Cell(on=ALL - {Technique.STABLE_KEYS}), kept, Cell(on=NONE), kept]
    for cell in cells:
        bench_here.measure(cell, run="r0")
    plain, own = ground_of(Cell(on=NONE)), ground_of(Cell(on=ALL - {Technique.STABLE_KEYS}))
    assert ran == [
        (base, "seed", None),
        (plain, "r0", anchor),
        (base, "r0", anchor),
        (own, "seed", anchor),
        (own, "r0", anchor),
        (plain, "fills", anchor),
        (plain, "r0", anchor),
        (plain, "r0", anchor),
        (plain, "r0", anchor),
    ]
    ran.clear()
    monkeypatch.setattr(attempts, "code_identity", lambda: "two")  # the code changed: no day before is believed
    bench_here.measure(Cell(on=NONE), run="r1")
    assert [run for _, run, _ in ran] == ["seed", "r1"]


# -- processes --------------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_home_is_ended_and_of_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "IDLE_PATIENCE_S", 0.3)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine, other = (
        subprocess.Popen(sleeper, env={**os.environ, "ETT_HOME": str(tmp_path / name)}) for name in ("mine", "other")
    )
    try:
        attempts.end_processes(tmp_path / "mine")
        assert mine.wait(5) == -9
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_only_the_benchmarks_wrapper_delays_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.dpp.reader import PartitionReader

    events: list[object] = []
    monkeypatch.setattr(PartitionReader, "_open", lambda self, planned, opened: events.append(planned))
    monkeypatch.setattr(late_source.time, "sleep", events.append)
    late_source.delay_opening(7.5)
    PartitionReader._open(None, "file", None)  # type: ignore[arg-type]
    assert events == [7.5, "file"]


@pytest.mark.integration
def test_a_kept_folder_is_compiled_into_and_left(tmp_path: Path) -> None:
    """In a process of its own, since it changes a class for good."""
    script = f"""
from pathlib import Path
from tests.benchmarks.startup.arms import Cell
from tests.benchmarks.startup.rank_modules import kept_folder
from tests.benchmarks.startup.rank_modules import late_source
from tests.benchmarks.startup.refresh import spec_of
from trainer.compile.attempt_cache import AttemptCache
from trainer.run_folder import RunFolder
kept = Path({str(tmp_path)!r}) / "kept"
kept.mkdir()
kept_folder.keep(kept)
folder = RunFolder(Path({str(tmp_path)!r}) / "refresh" / "run")
cache = AttemptCache.of(spec_of(Cell(on=frozenset())), folder, folder=Path("/nowhere"), device="cpu", threads=1)
assert cache.folder == kept, cache.folder
cache.remove()
assert kept.is_dir()
"""
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_a_small_attempt_is_measured_for_real(tmp_path: Path) -> None:
    cell = Cell(on=arms.SHARDING, course=arms.Course.SHARD, tables=3)
    found = Bench(tmp_path).measure(cell, run="r0")
    assert found.plan == "cached"  # the day before had planned
    assert found.sharding_s is not None and found.sharding_s > 0
    assert found.tts_s is None  # it was ended before its first step
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info["cmdline"])]
    assert not list((tmp_path / "homes").iterdir())


def test_results_keep_every_measure(tmp_path: Path) -> None:
    whole = Measures(
        tts_s=1.0, archive_hit=False, plan="planned", start="warm", recompilations=2, phases={"compile": 0.5}
    )
    results = Results(tmp_path / "r.jsonl")
    results.add(dataclasses.replace(result(Cell(on=NONE), 3), measures=whole))
    assert results.all()[0].measures == whole
    assert len(code_identity()) == 12
