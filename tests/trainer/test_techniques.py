"""Every technique on and off: the same model to the bit where the compiler is the same, and the same kind of report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from saved_state import differing
from training_job import Job

from ett_reports.__main__ import main as ett_reports
from ett_reports.events import Component, Phase
from ett_reports.levels import reduce
from ett_reports.reader import EventLog, read_log
from trainer.spec import Preset, Technique

JobFactory = Callable[..., Job]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ANOTHER_GRAPH = {Technique.DYNAMIC_SHAPES, Technique.FIXED_BATCH, Technique.SKIP_MODULES}
"""With these the compiler gets other sizes or modules, and its kernels may add up in another order."""

FIXED = {Technique.FIXED_BATCH.value: True}
BATCH = {"batch_size": 30}
"""Leaves a last batch that is smaller, and not so small that it would run eagerly."""


@pytest.fixture(scope="module")
def all_on(new_job: JobFactory) -> Job:
    job = new_job("all-on", optimizations={"preset": Preset.OPTIMIZED}, training=BATCH)
    assert job.run() == [0, 0], job.log()
    return job


@pytest.fixture(scope="module")
def all_off(new_job: JobFactory) -> Job:
    job = new_job("all-off", optimizations={"preset": Preset.BASELINE}, training=BATCH)
    assert job.run() == [0, 0], job.log()
    return job


def test_all_techniques_that_leave_the_graphs_alone_leave_every_bit_alone(new_job: JobFactory, all_on: Job) -> None:
    job = new_job("same-graphs", optimizations={"preset": Preset.BASELINE, **FIXED}, training=BATCH)
    assert job.run() == [0, 0], job.log()
    assert differing(job.folder.anchor_dir, all_on.folder.anchor_dir) == []
    assert job.quality("progressive") == all_on.quality("progressive")


@pytest.mark.soak
@pytest.mark.parametrize("technique", sorted(set(Technique) - ANOTHER_GRAPH))
def test_a_technique_alone_leaves_every_bit_alone(new_job: JobFactory, all_on: Job, technique: Technique) -> None:
    """Switched off beside all others, and on beside none."""
    off = new_job(f"without-{technique}", optimizations={"preset": Preset.OPTIMIZED, technique: False}, training=BATCH)
    on = new_job(
        f"with-{technique}", optimizations={"preset": Preset.BASELINE, **FIXED, technique: True}, training=BATCH
    )
    for job in (off, on):
        assert job.run() == [0, 0], job.log()
        assert differing(job.folder.anchor_dir, all_on.folder.anchor_dir) == []


def test_other_graphs_learn_the_same(all_on: Job, all_off: Job) -> None:
    on, off = all_on.quality("holdout"), all_off.quality("holdout")
    assert on["rows"] == off["rows"]
    assert math.isclose(on["ne"], off["ne"], rel_tol=1e-3)
    assert math.isclose(on["auc"], off["auc"], abs_tol=2e-3)


def test_nothing_is_compiled_in_the_loop_with_all_on_and_much_of_it_with_all_off(all_on: Job, all_off: Job) -> None:
    """No recompilation after the first 50 iterations (paper IV-B): here none at all, to the last, short batch."""
    assert len(all_on.cursors(attempt=1)) > 50
    assert all_on.planned % (2 * all_on.spec.training.batch_size) > 2
    assert Phase.RECOMPILE not in all_on.phases(attempt=1)
    spans = [span for span in log_of(all_off).processes[0].spans if span.phase is Phase.RECOMPILE]
    assert spans
    assert "size mismatch" in str(dict(spans[0].attrs)["reason"])


def test_with_all_off_it_trains_every_row_and_keeps_nothing_that_was_compiled(all_off: Job) -> None:
    assert all_off.cursors(attempt=1)[-1] == all_off.planned
    (cache,) = all_off.points("compile_cache")
    assert cache["archived_bytes"] == 0
    assert "hit" not in cache


def test_stages_overlap_with_all_on_and_follow_each_other_with_all_off(all_on: Job, all_off: Job) -> None:
    def spans(job: Job) -> dict[Phase, tuple[int, int]]:
        (process,) = [each for each in log_of(job).processes if each.identity.rank == 0]
        return {each.phase: (each.start_ns, each.end_ns or 0) for each in process.spans}

    on, off = spans(all_on), spans(all_off)
    compiling, sharding = on[Phase.COMPILE], on[Phase.TRAIN_MODULE]
    assert compiling[0] < sharding[1] and sharding[0] < compiling[1]
    stages = [Phase.DEVICE_INIT, Phase.PROCESS_GROUP, Phase.PREPROCESSING, Phase.TRAIN_MODULE, Phase.PLUGIN_INIT]
    stages += [Phase.CHECKPOINT_RESTORE, Phase.PRE_TRAIN_SETUP, Phase.FIRST_BATCH, Phase.COMPILE]
    for before, after in itertools.pairwise(stages):
        assert off[before][1] <= off[after][0], f"{after} before the end of {before}"


def test_k17_and_k18_compilation_is_compilation_wherever_it_happens_and_parts_sum_to_their_parent(
    all_on: Job, all_off: Job
) -> None:
    for job in (all_on, all_off):
        report = reduce(log_of(job))
        assert sum(report.l1.values()) == sum(report.l2.values()) == report.wall_ns
        exposed = {total.phase: total.exposed_ns for total in report.phases}
        compiling = exposed.get(Phase.COMPILE, 0) + exposed.get(Phase.RECOMPILE, 0)
        assert compiling == report.l2[Component.PT2_COMPILE] > 0
    recompiled = {total.phase: total.exposed_ns for total in reduce(log_of(all_off)).phases}[Phase.RECOMPILE]
    assert recompiled > 0


def test_both_have_the_same_vocabulary_and_can_be_compared(
    all_on: Job, all_off: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    on, off = reduce(log_of(all_on)), reduce(log_of(all_off))
    only_off = {Phase.RECOMPILE}
    assert {total.phase for total in off.phases} - only_off == {total.phase for total in on.phases} - only_off
    points = [
        {point.name for process in log_of(job).processes for point in process.points} for job in (all_on, all_off)
    ]
    assert points[0] == points[1] - {"recompile_limit"}
    assert ett_reports(["compare", str(all_off.folder.root), str(all_on.folder.root)]) == 0
    shown = capsys.readouterr().out
    assert "pt2_compile" in shown and "trainer_init" in shown


def log_of(job: Job) -> EventLog:
    return read_log(job.folder.events_dir)
