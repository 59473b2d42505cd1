"""The goals of startup, judged from results: what was aimed at, what was measured, met or missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmarks.startup import arms
from tests.benchmarks.startup.estimates import Interval, ratio_of
from tests.benchmarks.startup.results import Result, runs_of


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A measure of `arm` is to be at most `at_most` of the baseline's. `paper`: what the paper reports, if it does."""

    text: str
    measure: str
    experiment: Callable[[], arms.Experiment]
    arm: str
    at_most: float
    paper: str


GOALS: tuple[Goal, ...] = (
    Goal(
        text="TTS",
        measure="tts_s",
        experiment=arms.cumulative,
        arm=f"+ `{arms.IN_ORDER[-1]}`",
        at_most=0.35,
        paper="-41%",
    ),
    Goal(
        text="compilation, archive only",
        measure="compile_busy_s",
        experiment=lambda: arms.regimes(arms.Architecture.DLRM),
        arm="all on, archive only",
        at_most=0.10,
        paper="-87.6%",
    ),
    Goal(
        text="compilation, local cache",
        measure="compile_busy_s",
        experiment=lambda: arms.regimes(arms.Architecture.DLRM),
        arm="all on, local cache",
        at_most=0.07,
        paper="-89.5%",
    ),
    Goal(
        text="restart to the first completed step",
        measure="tts_s",
        experiment=arms.restart,
        arm="all on",
        at_most=0.25,
        paper="none",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A goal and the ratio that was measured; None without runs of both arms."""

    goal: Goal
    ratio: Interval | None

    @property
    def word(self) -> str:
        """Met by the median; `surely` when the whole interval is on one side."""
        if self.ratio is None:
            return "not measured"
        met = self.ratio.value <= self.goal.at_most
        bound = self.ratio.high if met else self.ratio.low
        sure = bound is not None and (bound <= self.goal.at_most) == met
        return f"{'met' if met else 'missed'}{'' if sure else ', not surely'}"


def judge(results: Sequence[Result]) -> list[Judged]:
    """Every goal against our own baseline."""
    judged = []
    for goal in GOALS:
        experiment = goal.experiment()
        cell = next(arm.cell for arm in experiment.arms if arm.label == goal.arm)
        after, before = (runs_of(results, one, goal.measure) for one in (cell, experiment.baseline.cell))
        judged.append(Judged(goal=goal, ratio=ratio_of(after, before)))
    return judged
