"""Two runs of a refresh side by side: first whether they did the same work, then what the second cost less or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ett_airflow.ui.question import Answer, Question
from ett_airflow.ui.reading import read_run
from ett_airflow.ui.templating import rendered
from ett_reports.compare import Comparison, ComparisonRefusedError, compare
from ett_reports.document import ReportDocument
from ett_reports.events import L1, Component
from ett_reports.render.html import flattened, whole_bar
from ett_reports.render.untrusted import printable, printable_tree
from ett_reports.report import JobReport
from trainer.run_folder import RunFolder

_ITS_NAME = "run"
_PARAMS = "params."
"""What a person asked for stands behind settings that are listed themselves."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of the spec, as both runs had it; empty where a run does not say."""

    name: str
    baseline: str
    other: str


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Seconds of a class or component in both runs; points of wall time that the other spends less on it."""

    part: str
    baseline_ns: int
    other_ns: int
    baseline_wall_ns: int
    other_wall_ns: int

    @property
    def saved_ns(self) -> int:
        return self.baseline_ns - self.other_ns

    @property
    def points(self) -> float | None:
        if not self.baseline_wall_ns or not self.other_wall_ns:
            return None
        return 100 * (self.baseline_ns / self.baseline_wall_ns - self.other_ns / self.other_wall_ns)


def comparison(question: Question, now_ns: int) -> Answer:
    """The first folder is the baseline."""
    readings = [read_run(RunFolder.open(folder), now_ns) for folder in question.folders]
    documents = [reading.document for reading in readings]
    baseline, other = documents
    if baseline is None or other is None:
        missing = [RunFolder.open(f).run for f, d in zip(question.folders, documents, strict=True) if d is None]
        return Answer(
            problem=f"Nothing to compare: no training job of {printable(' and '.join(missing))} was recorded."
        )
    result, refused = _compared(baseline, other)
    html = rendered(
        "comparison.html.j2",
        documents=(printable_tree(baseline), printable_tree(other)),
        bars=(whole_bar(baseline.job), whole_bar(other.job)),
        runs=[printable(RunFolder.open(folder).run) for folder in question.folders],
        result=result,
        other_work=printable_tree((*refused, *_other_data(baseline, other))),
        settings=_settings(baseline.spec, other.spec),
        components=_margins(baseline.job, other.job, baseline.job.l2, other.job.l2, Component),
        classes=_margins(baseline.job, other.job, baseline.job.l1, other.job.l1, L1),
    )
    return Answer(html=html, live=any(reading.live for reading in readings))


def _compared(baseline: ReportDocument, other: ReportDocument) -> tuple[Comparison | None, tuple[str, ...]]:
    try:
        return compare([baseline], [other]), ()
    except ComparisonRefusedError as error:
        return None, error.differences


def _other_data(baseline: ReportDocument, other: ReportDocument) -> tuple[str, ...]:
    """What `compare` does not ask for: a pair on other data or from another start is no measurement of a setting."""
    found = []
    windows = [str(document.spec.get("window", "unknown")) for document in (baseline, other)]
    if windows[0] != windows[1]:
        found.append(f"data window {windows[0]} and {windows[1]}")
    samples = [document.job.planned_samples for document in (baseline, other)]
    if samples[0] != samples[1]:
        found.append("planned samples " + " and ".join("unknown" if n is None else f"{n:,}" for n in samples))
    starts = ["none" if _cold(document) else "an earlier run's anchor" for document in (baseline, other)]
    if starts[0] != starts[1]:
        found.append(f"warm start {starts[0]} and {starts[1]}")
    return tuple(found)


def _cold(document: ReportDocument) -> bool:
    return document.spec.get("warm_start", "none") == "none"


def _settings(baseline: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Those that differ, by name."""
    one, two = dict(flattened(baseline)), dict(flattened(other))
    names = [name for name in dict.fromkeys((*one, *two)) if one.get(name) != two.get(name)]
    return tuple(
        Setting(name=name, baseline=one.get(name, ""), other=two.get(name, ""))
        for name in names
        if name != _ITS_NAME and not name.startswith(_PARAMS)
    )


def _margins(
    baseline: JobReport, other: JobReport, before: Mapping[Any, int], after: Mapping[Any, int], parts: Any
) -> tuple[Margin, ...]:
    return tuple(
        Margin(
            part=part.value,
            baseline_ns=before.get(part, 0),
            other_ns=after.get(part, 0),
            baseline_wall_ns=baseline.wall_ns,
            other_wall_ns=other.wall_ns,
        )
        for part in parts
    )
