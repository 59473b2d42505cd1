"""Section 12: the refresh and its tasks, from Airflow's tries with the operators' own stamps laid over them.

Airflow's stamps are wrong where it matters (a cold start is stamped before the code runs, a failed try ends late, a
deferral overwrites when the task was queued, a rescheduled sensor shows its last poke, `running` fires again at every
resume), so an operator's first stamp of a kind in a try always wins, and what is left impossible is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ett_reports.events import L1, Component, Point, Provenance, Source
from ett_reports.facts import Fact, facts_of, whole
from ett_reports.log import EventLog
from ett_reports.report import JobReport, RefreshReport, TaskReport, TaskTry

DEVICE_TASK = "train"
REPORT_TASK = "report"
_JOB_TASKS = ("launch", DEVICE_TASK)
_FAILED = frozenset({"failed", "up_for_retry", "retry", "error", "shutdown", "restarting", "killed"})
_NEVER_RAN = frozenset({"skipped", "removed", "upstream_failed"})
_DONE = frozenset({"success", "succeeded", "completed"}) | _NEVER_RAN
_OPERATOR_POINTS = (Point.TASK_CODE_START, Point.TASK_SUBMIT, Point.TASK_DEFER, Point.TASK_RESUME, Point.TASK_END)


@dataclass(kw_only=True)
class _Try:
    """One try of one task, as told. Unix ns."""

    task: str
    number: int
    airflow: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, list[Fact]] = field(default_factory=dict)

    def first(self, name: Point) -> int | None:
        return min((fact.wall_ns for fact in self.stamps.get(name, [])), default=None)

    def own(self, name: str) -> int | None:
        return whole(self.airflow.get(name))

    @property
    def known(self) -> bool:
        return bool(self.stamps) or any(self.own(name) is not None for name in ("scheduled", "queued", "start"))

    @property
    def outcome(self) -> str:
        """The operator's word where there is one, unless Airflow failed the try after all; else Airflow's state."""
        ends = sorted(self.stamps.get(Point.TASK_END, []), key=lambda fact: fact.order)
        said = str(ends[-1].attrs.get("outcome") or "") if ends else ""
        state = str(self.airflow.get("state") or "")
        return state if state in _FAILED and said not in _FAILED else said or state

    @property
    def ended(self) -> bool:
        return Point.TASK_END in self.stamps or self.outcome in _FAILED | _DONE

    @property
    def code_start(self) -> int | None:
        """The first stamp of the code; without one Airflow's start, which may be early or a later poke's."""
        told = self.first(Point.TASK_CODE_START)
        return self.own("start") if told is None else told

    @property
    def end(self) -> int | None:
        told = max((fact.wall_ns for fact in self.stamps.get(Point.TASK_END, [])), default=None)
        if told is not None:
            return told
        return self.own("end") if self.ended else None


def reduce_refresh(log: EventLog, report: JobReport | None, now_ns: int | None = None) -> RefreshReport | None:
    """The refresh's report; None when Airflow wrote nothing. report: the job's, or None if it was never submitted."""
    facts = [f for p in log.processes if p.identity.source is Source.AIRFLOW for f in facts_of(p)]
    live = [f for process in log.processes for f in facts_of(process) if f.name == Point.SNAPSHOT_LIVE]
    if not facts:
        return None
    facts.sort(key=lambda fact: fact.order)
    run = _last_attrs(facts, Point.DAG_RUN)
    tries = _tries(facts)
    queued = _refresh_start(run, tries, facts)
    end, state = _refresh_end(run, tries, facts, queued, now_ns)
    tasks = _task_reports(tries, queued, end, report)
    snapshot = min(live, key=lambda fact: fact.order) if live else None
    window_end = whole(run.get("window_end"))
    fresh = snapshot.wall_ns - window_end if snapshot is not None and window_end is not None else None
    return RefreshReport(
        job=log.job,
        run_type=str(run["run_type"])[:100] if run.get("run_type") else None,
        queued_unix_ns=queued,
        wall_ns=end - queued,
        state=state,
        tasks=tuple(tasks),
        freshness_ns=fresh,
        window_end_unix_ns=window_end,
        snapshot_live_unix_ns=snapshot.wall_ns if snapshot is not None else None,
        snapshot_version=str(snapshot.attrs.get("version") or "")[:200] or None if snapshot is not None else None,
        degraded=_degraded(run, tries),
    )


def _last_attrs(facts: Iterable[Fact], name: Point) -> dict[str, Any]:
    """REST is read many times; the last reading knows the most."""
    return next((fact.attrs for fact in reversed(list(facts)) if fact.name == name), {})


def _tries(facts: Iterable[Fact]) -> dict[str, list[_Try]]:
    found: dict[tuple[str, int], _Try] = {}
    for fact in facts:
        task = fact.attrs.get("task")
        if not isinstance(task, str) or fact.name not in (*_OPERATOR_POINTS, Point.TASK_TRY):
            continue
        number = whole(fact.attrs.get("try_number"))
        number = _current_try(found, task) if number is None else number
        known = found.setdefault((task, number), _Try(task=task, number=number))
        if fact.name == Point.TASK_TRY:
            known.airflow = fact.attrs
        else:
            known.stamps.setdefault(fact.name, []).append(fact)
    by_task: dict[str, list[_Try]] = {}
    for key in sorted(found):
        # Airflow lists a task that was not reached yet as a try without stamps.
        if found[key].known:
            by_task.setdefault(key[0], []).append(found[key])
    return by_task


def _current_try(found: dict[tuple[str, int], _Try], task: str) -> int:
    """A stamp that names no try belongs to the latest one whose code has begun."""
    begun = [number for (name, number), item in found.items() if name == task and item.stamps]
    return max(begun, default=1)


def _refresh_start(run: dict[str, Any], tries: dict[str, list[_Try]], facts: list[Fact]) -> int:
    queued = whole(run.get("queued"))
    if queued is not None:
        return queued
    known = [item.own("scheduled") or item.code_start for items in tries.values() for item in items]
    told = [whole(run.get("start")), *known]
    return min((instant for instant in told if instant is not None), default=facts[0].wall_ns)


def _refresh_end(
    run: dict[str, Any], tries: dict[str, list[_Try]], facts: list[Fact], queued: int, now_ns: int | None
) -> tuple[int, str]:
    """The end of the report; of the run, if it ended without one; else now."""
    state = str(run.get("state") or "")
    reported = tries.get(REPORT_TASK, [])
    if reported and reported[-1].ended and reported[-1].outcome not in _FAILED:
        end = reported[-1].end
        if end is not None:
            # The run's state was read while its last task was still at work.
            return max(end, queued), state if state in _FAILED | _DONE else "success"
    finished = whole(run.get("end"))
    if finished is not None:
        return max(finished, queued), state or "finished"
    ends = [end for items in tries.values() for item in items if (end := item.end) is not None]
    latest = max([*ends, *(fact.wall_ns for fact in facts if fact.name in _OPERATOR_POINTS)], default=queued)
    return max(latest if now_ns is None else max(now_ns, latest), queued), state or "running"


def _task_reports(tries: dict[str, list[_Try]], queued: int, end: int, report: JobReport | None) -> list[TaskReport]:
    ends = sorted((last, task) for task, items in tries.items() if (last := items[-1].end) is not None)
    reports = []
    for task, items in tries.items():
        upstream = [last for last, other in ends if other != task]
        reports.append(_task_report(task, items, queued, end, upstream, report))
    return sorted(reports, key=lambda item: (item.start_ns, item.end_ns, item.task))


def _task_report(
    task: str, items: list[_Try], queued: int, now: int, upstream: list[int], report: JobReport | None
) -> TaskReport:
    done: list[TaskTry] = []
    for item in items:
        before = done[-1] if done else None
        done.append(_try_report(item, before, queued, now, upstream))
    start = min(item.ready_ns for item in done)
    end = max([start, *(now - queued if item.end_ns is None else item.end_ns for item in done)])
    holds = task == DEVICE_TASK
    components = _components(report, queued + start, queued + end) if report is not None and task in _JOB_TASKS else {}
    return TaskReport(
        task=task,
        start_ns=start,
        end_ns=end,
        tries=tuple(done),
        holds_devices=holds,
        productive_ns=components.get(Component.EFFECTIVE_TRAINING, 0) if holds and report is not None else None,
        components=components,
        share=(end - start) / (now - queued) if now > queued else None,
    )


def _try_report(item: _Try, before: TaskTry | None, queued: int, now: int, upstream: list[int]) -> TaskTry:
    overridden: list[str] = []
    code, end = item.code_start, item.end
    for name, own, told in (("start", item.own("start"), code), ("end", item.own("end"), end)):
        if own is not None and told is not None and own != told:
            overridden.append(name)
    earliest = queued if before is None or before.end_ns is None else queued + before.end_ns
    ready, provenance = _ready(item, code, earliest, before is None, upstream, overridden)
    ready = max(ready, earliest)
    until = now if end is None else max(end, ready)
    code = None if code is None else min(max(code, ready), until)
    deferred = _deferred(item, code, until)
    ran = 0 if code is None else until - code
    failed = item.outcome in _FAILED
    if Point.TASK_CODE_START not in item.stamps and provenance is Provenance.MEASURED:
        provenance = Provenance.INFERRED
    return TaskTry(
        number=item.number,
        state=item.outcome or ("running" if code is not None else "queued"),
        ready_ns=ready - queued,
        code_start_ns=None if code is None else code - queued,
        end_ns=None if end is None else until - queued,
        queue_ns=(until if code is None else code) - ready,
        run_ns=ran - deferred,
        deferred_ns=deferred,
        retry_wait_ns=0 if before is None else ready - earliest,
        wasted_ns=ran if failed else 0,
        overridden=tuple(overridden),
        provenance=provenance,
    )


def _ready(
    item: _Try, code: int | None, earliest: int, first: bool, upstream: list[int], overridden: list[str]
) -> tuple[int, Provenance]:
    """When the task could have run. A deferral overwrites Airflow's stamp with that of the resume: no use then."""
    noted = [whole(fact.attrs.get("scheduled")) for fact in item.stamps.get(Point.TASK_CODE_START, [])]
    seen = min((instant for instant in noted if instant is not None), default=None)
    if seen is not None and (code is None or seen <= code):
        return seen, Provenance.MEASURED
    scheduled = item.own("scheduled")
    if scheduled is not None and (code is None or scheduled <= code):
        return scheduled, Provenance.MEASURED
    if scheduled is not None:
        overridden.append("scheduled")
    if code is None:
        return earliest, Provenance.ESTIMATED
    if first:
        # The task became ready when the one before it ended.
        return max([earliest, *(end for end in upstream if end <= code)]), Provenance.ESTIMATED
    return code, Provenance.ESTIMATED


def _deferred(item: _Try, code: int | None, until: int) -> int:
    """From each deferral to the next resume; a try that never resumed was deferred to its end."""
    if code is None:
        return 0
    marks = [(fact.wall_ns, 0) for fact in item.stamps.get(Point.TASK_DEFER, [])]
    marks += [(fact.wall_ns, 1) for fact in item.stamps.get(Point.TASK_RESUME, [])]
    total, since = 0, None
    for at, resumed in sorted(marks):
        instant = min(max(at, code), until)
        if resumed and since is not None:
            total += instant - since
            since = None
        elif not resumed and since is None:
            since = instant
    return total + (until - since if since is not None else 0)


def _components(report: JobReport, start: int, end: int) -> dict[Component, int]:
    """The job's level 2 within [start, end), unix ns."""
    low, high = start - report.submitted_unix_ns, end - report.submitted_unix_ns
    found = dict.fromkeys(Component, 0)
    for segment in report.segments:
        inside = min(segment.end_ns, high) - max(segment.start_ns, low)
        if inside > 0:
            found[segment.l2] += inside
            assert segment.l1 is not L1.PRODUCTIVE or segment.l2 is Component.EFFECTIVE_TRAINING
    return found


def _degraded(run: dict[str, Any], tries: dict[str, list[_Try]]) -> tuple[str, ...]:
    found = []
    if not run:
        found.append("no dag_run point: the run's queue time and end are not known")
    for task, items in tries.items():
        for item in items:
            name = f"{task} try {item.number}"
            if not item.airflow:
                found.append(f"{name}: no stamps of Airflow; its readiness is estimated")
            elif item.outcome in _NEVER_RAN or Point.TASK_CODE_START in item.stamps:
                continue
            elif item.own("start") is not None:
                found.append(f"{name}: no stamps of the operator; Airflow's own are used")
    return tuple(found)
