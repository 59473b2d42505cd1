"""The report as OpenMetrics text, for Prometheus (a textfile collector, or a push gateway)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from ett_reports.events import Cause
from ett_reports.render.untrusted import printable
from ett_reports.report import JobReport, JobState, RefreshReport
from ett_reports.slo import Health, Judgement

Labels = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One gauge family. A unit, where given, ends the name, as OpenMetrics asks."""

    name: str
    unit: str
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)


def render_openmetrics(job: JobReport, refresh: RefreshReport | None, judgement: Judgement) -> str:
    """Gauges of one run, labelled by refresh and run. What is unknown has no sample, rather than a zero."""
    name, _, run = job.job.partition("/")
    common = {"refresh": name, "run": run}
    families = [*_job(job), *_health(job, refresh, judgement), *(() if refresh is None else _refresh(refresh))]
    lines = [line for family in families if family.samples for line in _lines(family, common)]
    return "\n".join([*lines, "# EOF", ""])


def _job(job: JobReport) -> Iterator[Family]:
    ratios = [({"of": "wall"}, job.ett), ({"of": "held"}, job.held_ett)]
    yield _family("ett_ratio", "ratio", "Effective training time as a share of time.", ratios)
    yield _family("ett_wall_seconds", "seconds", "First submission to the last release.", [({}, job.wall_ns / 1e9)])
    yield _family("ett_held_seconds", "seconds", "Time with devices allocated.", [({}, job.held_ns / 1e9)])
    yield _family(
        "ett_class_seconds",
        "seconds",
        "Wall time by level 1.",
        [({"class": k.value}, v / 1e9) for k, v in job.l1.items()],
    )
    yield _family(
        "ett_component_seconds",
        "seconds",
        "Wall time by level 2.",
        [({"component": k.value}, v / 1e9) for k, v in job.l2.items()],
    )
    for kind in ("exposed", "busy"):
        yield _family(
            f"ett_phase_{kind}_seconds",
            "seconds",
            f"{kind.capitalize()} time by phase.",
            [({"phase": p.phase.value}, getattr(p, f"{kind}_ns") / 1e9) for p in job.phases],
        )
    causes = Counter(failure.cause for failure in job.failures)
    yield _family("ett_failures", "", "Failures by cause.", [({"cause": c.value}, causes[c]) for c in Cause])
    ttr = None if job.mean_ttr_ns is None else float(job.mean_ttr_ns) / 1e9
    yield _family("ett_mean_ttr_seconds", "seconds", "Mean time to recover, over all failures.", [({}, ttr)])
    lost = None if job.device_lost_ns is None else job.device_lost_ns / 1e9
    yield _family(
        "ett_device_lost_seconds", "seconds", "Allocated devices over time that was not productive.", [({}, lost)]
    )
    yield _family("ett_attempts", "", "Attempts of the job.", [({}, len(job.attempts))])
    states = [({"state": state.value}, float(state is job.state)) for state in JobState]
    yield _family("ett_job_state", "", "1 for the state that the job is in.", states)
    last = {(one.scope, name): value for one in job.metrics for name, value in one.values.items()}
    scoped = [({"scope": scope, "metric": name}, value) for (scope, name), value in last.items()]
    yield _family("ett_training_metric", "", "The last figure of each training metric and scope.", scoped)
    quality = [({"kind": name}, value) for name, value in asdict(job.quality).items()]
    yield _family("ett_log_quality", "", "What the reader of the event log met.", quality)
    provenance = [({"provenance": k.value}, v / 1e9) for k, v in job.provenance.items()]
    yield _family("ett_provenance_seconds", "seconds", "Wall time by what its boundaries rest on.", provenance)


def _health(job: JobReport, refresh: RefreshReport | None, judgement: Judgement) -> Iterator[Family]:
    degraded = bool(job.degraded) or (refresh is not None and bool(refresh.degraded))
    yield _family(
        "ett_degraded", "", "1 when a source is missing: silence is then not health.", [({}, float(degraded))]
    )
    judged = [verdict for verdict in judgement.verdicts if verdict.level is not None]
    yield _family(
        "ett_service_level",
        "",
        "1 for the health of each service level.",
        [
            (
                {
                    "component": verdict.subject.value,
                    "owner": "" if verdict.owner is None else verdict.owner.team,
                    "health": health.value,
                },
                float(verdict.health is health),
            )
            for verdict in judged
            for health in Health
            if health is not Health.UNSET
        ],
    )
    limits = [({"component": v.subject.value}, None if v.limit_ns is None else v.limit_ns / 1e9) for v in judged]
    yield _family("ett_service_level_limit_seconds", "seconds", "The budget (effective training: the goal).", limits)


def _refresh(refresh: RefreshReport) -> Iterator[Family]:
    yield _family(
        "ett_refresh_wall_seconds", "seconds", "The refresh, queued to reported.", [({}, refresh.wall_ns / 1e9)]
    )
    freshness = None if refresh.freshness_ns is None else refresh.freshness_ns / 1e9
    yield _family("ett_freshness_seconds", "seconds", "End of the data window to the live snapshot.", [({}, freshness)])
    tasks = refresh.tasks
    yield _family(
        "ett_task_seconds",
        "seconds",
        "First ready to last end.",
        [({"task": t.task}, t.interval_ns / 1e9) for t in tasks],
    )
    yield _family(
        "ett_task_ratio", "ratio", "Task ETT, of tasks that hold devices.", [({"task": t.task}, t.ett) for t in tasks]
    )
    yield _family("ett_task_tries", "", "Tries of each task.", [({"task": t.task}, len(t.tries)) for t in tasks])
    parts = [
        ({"task": task.task, "part": part}, sum(getattr(one, f"{part}_ns") for one in task.tries) / 1e9)
        for task in tasks
        for part in ("queue", "run", "deferred", "retry_wait", "wasted")
    ]
    yield _family("ett_task_part_seconds", "seconds", "Parts of each task's tries.", parts)


def _family(name: str, unit: str, text: str, samples: Iterable[tuple[Labels, float | None]]) -> Family:
    known = [(labels, float(value)) for labels, value in samples if value is not None]
    return Family(name=name, unit=unit, help=text, samples=known)


def _lines(family: Family, common: Labels) -> Iterator[str]:
    yield f"# TYPE {family.name} gauge"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {family.help}"
    for labels, value in family.samples:
        pairs = ",".join(f'{name}="{_label(text)}"' for name, text in {**common, **labels}.items())
        yield f"{family.name}{{{pairs}}} {_value(value)}"


def _label(text: str) -> str:
    return printable(text, 200).replace("\\", "\\\\").replace('"', '\\"')


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
