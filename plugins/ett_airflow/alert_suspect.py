"""The first thing to look at when a service level broke: what dominated its component, and what stood behind that."""

from __future__ import annotations

from ett_reports.advice import WHAT_TO_DO, answer
from ett_reports.events import L1, Component, Phase
from ett_reports.render.words import COMPONENT, PHASE
from ett_reports.report import JobReport, RefreshReport, TaskReport
from ett_reports.slo import TASK_OF, Judgement, Owned, Verdict

_SHORT_NS = 1_000_000_000


def first_suspect(verdict: Verdict, job: JobReport, refresh: RefreshReport | None, judgement: Judgement) -> str:
    """One or two sentences; empty when nothing was spent."""
    if verdict.subject in TASK_OF:
        task = refresh.task(TASK_OF[verdict.subject]) if refresh else None
        return _of_task(task) if task else ""
    if verdict.subject is Owned.EFFECTIVE_TRAINING:
        return _of_goal(job, judgement)
    return _of_component(Component(verdict.subject.value), job)


def seconds(spent_ns: int) -> str:
    return f"{spent_ns / 1e9:,.1f} s"


def _of_goal(job: JobReport, judgement: Judgement) -> str:
    """A goal is missed because of what else cost time: the costliest component, and whose it is."""
    costliest = answer(job, judgement)
    if costliest.component is None:
        return ""
    owner = f", owned by {costliest.owner.label}" if costliest.owner else ""
    return f"{COMPONENT[costliest.component]} cost the most{owner}. {_of_component(costliest.component, job)}"


def _of_component(component: Component, job: JobReport) -> str:
    leaves = [total for total in job.phases if total.component is component]
    leaf = max(leaves, key=lambda total: total.exposed_ns, default=None)
    spent = job.l2.get(component, 0)
    if leaf is None or not leaf.exposed_ns:
        return ""
    parts = [f"{PHASE[leaf.phase]}: {seconds(leaf.exposed_ns)} of {seconds(spent)}."]
    parts += [part for part in (_failure(component, job, spent), _straggler(leaf.phase, job)) if part]
    return " ".join([*parts, WHAT_TO_DO.get(leaf.phase, "")]).strip()


def _failure(component: Component, job: JobReport, spent: int) -> str:
    """Names the costliest failure if recoveries took the most of the component's time."""
    recovering = job.cross.get(L1.RECOVERY, {}).get(component, 0)
    if 2 * recovering <= spent or not job.failures:
        return ""
    worst = max(job.failures, key=lambda failure: failure.recovery_ns)
    return (
        f"{seconds(recovering)} of it in recoveries; the costliest after attempt {worst.attempt} ended by "
        f"{worst.cause.value}: {worst.message or 'no message'}."
    )


def _straggler(phase: Phase, job: JobReport) -> str:
    slow = [each for each in job.stragglers if each.phase is phase and each.excess_ns > _SHORT_NS]
    if not slow:
        return ""
    worst = max(slow, key=lambda each: each.excess_ns)
    return (
        f"Rank {worst.slowest_rank} on {worst.slowest_host} was {seconds(worst.excess_ns)} slower than the median rank."
    )


def _of_task(task: TaskReport) -> str:
    """Of a task outside the job: which part of its tries took the time."""
    parts = {
        "waiting for a worker": sum(each.queue_ns for each in task.tries),
        "running": sum(each.run_ns for each in task.tries),
        "waiting for its job": sum(each.deferred_ns for each in task.tries),
        "waiting to be retried": sum(each.retry_wait_ns for each in task.tries),
    }
    what = max(parts, key=lambda part: parts[part])
    wasted = sum(each.wasted_ns for each in task.tries)
    failed = f"; {seconds(wasted)} went into failed tries" if wasted else ""
    tries = f"{len(task.tries)} tries" if len(task.tries) != 1 else "1 try"
    return f"Task {task.task}, {tries}: {seconds(parts[what])} {what} of {seconds(task.interval_ns)}{failed}."
