"""Pairs: savings that add up, restarts that multiply them, and refusals that name the difference."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from ett_reports.ablation import Measure, leave_one_out
from ett_reports.compare import ComparisonRefusedError, compare, conditions_of
from ett_reports.document import ReportDocument
from ett_reports.events import L1, Cause, Component, Phase, Provenance
from ett_reports.report import Failure, JobReport, JobState
from ett_reports.slo import Snapshot, judge
from tests.ett_reports.render.sample_reports import S, job_report


def job(tts: float, ttr: float = 0, failures: int = 0, blocking: float = 20, shutdown: float = 30) -> JobReport:
    """Trains 1000 s; every recovery is all TTR."""
    pieces: list[Any] = [(L1.TTS, Phase.COMPILE, tts, 1), (L1.PRODUCTIVE, Phase.STEP, 500, 1)]
    found = []
    for number in range(1, failures + 1):
        start = sum(round(piece[2] * S) for piece in pieces)
        pieces += [(L1.RECOVERY, Phase.REPLAY, ttr, number + 1), (L1.PRODUCTIVE, Phase.STEP, 1, number + 1)]
        found.append(
            Failure(
                attempt=number,
                cause=Cause.PREEMPTION,
                message="",
                start_ns=start,
                failure_ns=start,
                detected_ns=start,
                end_ns=start + round(ttr * S),
                lost_ns=0,
                detect_ns=0,
                ttr_ns=round(ttr * S),
                recovered=True,
                replayed_samples=0,
                lost_not_replayed_samples=0,
                provenance=Provenance.MEASURED,
            )
        )
    last = failures + 1
    pieces += [
        (L1.IN_LOOP, Phase.CHECKPOINT_BLOCKING, blocking, last),
        (L1.PRODUCTIVE, Phase.STEP, 500, last),
        (L1.SHUTDOWN, Phase.FINAL_CHECKPOINT, shutdown, last),
    ]
    report = job_report(pieces, failures=tuple(found), nof=failures)
    mean = Fraction(round(ttr * S)) if failures else None
    return dataclasses.replace(report, complement=dataclasses.replace(report.complement, mean_ttr_ns=mean))


def run(report: JobReport, **spec: Any) -> ReportDocument:
    given = {"model": "dlrm", "ranks": 2, "checkpoint_interval_s": 600, **spec}
    return ReportDocument(title="", job=report, refresh=None, judgement=judge(Snapshot(job=report)), spec=given)


def test_savings_by_component_and_their_points_add_up() -> None:
    before, after = job(tts=200, ttr=300, failures=2), job(tts=120, ttr=100, failures=2, shutdown=5)
    (pair,) = compare([run(before)], [run(after)]).pairs
    assert pair.classes[L1.TTS].seconds == 80
    assert pair.classes[L1.RECOVERY].seconds == 400
    assert pair.components[Component.SHUTDOWN].seconds == 25
    assert sum(saving.seconds for saving in pair.components.values()) == pytest.approx(pair.wall_s)
    lost = [saving.points for part, saving in pair.components.items() if part is not Component.EFFECTIVE_TRAINING]
    assert sum(lost) == pytest.approx(pair.gain_points)


def test_restart_multiplier_cascade_bound_and_inherited_part() -> None:
    before, after = job(tts=200, ttr=300, failures=2), job(tts=120, ttr=100, failures=2)
    (pair,) = compare([run(before)], [run(after)]).pairs
    assert pair.restart_multiplier == pytest.approx(200 / 80)
    assert pair.cascade_bound_s == pytest.approx(3 * 80)
    assert pair.inherited_s == pytest.approx(2 * 80)


def test_the_inherited_part_is_no_more_than_the_recovery_saved() -> None:
    before, after = job(tts=200, ttr=110, failures=2), job(tts=120, ttr=100, failures=2)
    (pair,) = compare([run(before)], [run(after)]).pairs
    assert pair.inherited_s == pytest.approx(20)


def test_multiplier_is_not_available_when_tts_did_not_drop_or_nothing_failed() -> None:
    (worse,) = compare([run(job(tts=100, ttr=50, failures=1))], [run(job(tts=120, ttr=30, failures=1))]).pairs
    assert (worse.restart_multiplier, worse.cascade_bound_s, worse.inherited_s) == (None, None, None)
    (calm,) = compare([run(job(tts=100))], [run(job(tts=80))]).pairs
    assert calm.restart_multiplier is None
    assert calm.cascade_bound_s == pytest.approx(20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "model dlrm and other"),
        ({"ranks": 4}, "ranks 2 and 4"),
        ({"checkpoint_interval_s": 601}, "checkpoint interval 600 s and 601 s"),
    ],
)
def test_a_pair_of_other_conditions_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ComparisonRefusedError) as raised:
        compare([run(job(tts=100))], [run(job(tts=80), **change)])
    assert raised.value.differences == (message,)


def test_other_failures_and_unfinished_runs_are_refused() -> None:
    with pytest.raises(ComparisonRefusedError, match="NoF 0 and 1"):
        compare([run(job(tts=100))], [run(job(tts=80, ttr=1, failures=1))])
    live = dataclasses.replace(job(tts=80), state=JobState.LIVE)
    with pytest.raises(ComparisonRefusedError, match="the optimized run is live, not completed"):
        compare([run(job(tts=100))], [run(live)])


def test_a_tts_cut_by_a_failure_is_refused() -> None:
    good, cut = job(tts=100, ttr=50, failures=1), job(tts=80, ttr=50, failures=1)
    early = dataclasses.replace(cut.failures[0], start_ns=10 * S)
    cut = dataclasses.replace(cut, failures=(early,))
    with pytest.raises(ComparisonRefusedError, match="TTS of the optimized run was cut by the failure of attempt 1"):
        compare([run(good)], [run(cut)])


def test_every_difference_is_named_at_once() -> None:
    with pytest.raises(ComparisonRefusedError) as raised:
        compare([run(job(tts=100))], [run(job(tts=80, ttr=1, failures=1), model="b", ranks=8)])
    assert len(raised.value.differences) == 3


def test_without_a_spec_the_run_speaks_for_itself() -> None:
    document = dataclasses.replace(run(job(tts=100)), spec={})
    conditions = conditions_of(document)
    assert (conditions.model, conditions.ranks, conditions.checkpoint_interval_s) == ("completejourney", (2,), 15)
    slower = dataclasses.replace(document.job.checkpoints, interval_ns=16 * S)
    other = dataclasses.replace(document, job=dataclasses.replace(document.job, checkpoints=slower))
    compare([document], [other])  # 15 s and 16 s measured are one setting
    slower = dataclasses.replace(document.job.checkpoints, interval_ns=20 * S)
    other = dataclasses.replace(document, job=dataclasses.replace(document.job, checkpoints=slower))
    with pytest.raises(ComparisonRefusedError, match="checkpoint interval 15 s and 20 s"):
        compare([document], [other])


def test_repeats_give_intervals_and_one_pair_gives_none() -> None:
    before = [run(job(tts=tts)) for tts in (200, 210, 190)]
    after = [run(job(tts=tts)) for tts in (100, 108, 93)]
    result = compare(before, after)
    saved = result.classes[L1.TTS]
    assert saved.mean == pytest.approx((100 + 102 + 97) / 3)
    assert saved.low is not None and saved.high is not None
    assert saved.low < saved.mean < saved.high and saved.excludes_zero
    assert compare(before[:1], after[:1]).classes[L1.TTS].low is None


def test_runs_without_a_counterpart_are_refused() -> None:
    with pytest.raises(ComparisonRefusedError, match="2 baseline and 1 optimized runs"):
        compare([run(job(tts=1)), run(job(tts=1))], [run(job(tts=1))])
    with pytest.raises(ComparisonRefusedError, match="repeats 1 and 2: ranks 2 and 4"):
        compare([run(job(tts=1)), run(job(tts=1), ranks=4)], [run(job(tts=1)), run(job(tts=1), ranks=4)])


def switched(tts: float, **techniques: bool) -> ReportDocument:
    return run(job(tts=tts), optimizations={"preset": "optimized", **techniques})


def test_each_technique_s_own_effect_and_what_overlaps() -> None:
    """Warm-up 240 s and compilation 254 s in sequence: 494. Side by side: 254. Compilation cached to 100: 240."""
    result = leave_one_out(
        [
            switched(240, fast_batch=True, cache=True),
            switched(340, fast_batch=False, cache=True),
            switched(254, fast_batch=True, cache=False),
            switched(494, fast_batch=False, cache=False),
        ],
        Measure.TTS,
    )
    assert {name: one.mean for name, one in result.own.items()} == {"cache": 14, "fast_batch": 100}
    assert result.total is not None and result.total.mean == 254
    assert result.interaction == 140
    (pair,) = result.pairs
    assert pair.techniques == ("cache", "fast_batch") and pair.seconds == 140


def test_a_set_needs_a_run_that_leaves_out_one() -> None:
    with pytest.raises(ComparisonRefusedError, match="leaves out exactly one"):
        leave_one_out([switched(10, a=True, b=True), switched(20, a=False, b=False)])
    with pytest.raises(ComparisonRefusedError, match="does not say which techniques were on"):
        leave_one_out([run(job(tts=1))])


def test_repeats_of_a_set_give_intervals() -> None:
    runs = [switched(tts, a=True) for tts in (100, 101)] + [switched(tts, a=False) for tts in (150, 153)]
    own = leave_one_out(runs, Measure.TTS).own["a"]
    assert own.mean == 51 and own.count == 2 and own.low is not None
