"""One task's own share of a refresh: where its seconds went, which component it is, and who answers for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ett_airflow.ui.question import Answer, Question
from ett_airflow.ui.reading import Reading, read_run
from ett_airflow.ui.templating import rendered
from ett_reports.events import Component
from ett_reports.render.figures import duration
from ett_reports.render.lanes import Block, Lane, Layer, ticks
from ett_reports.render.untrusted import printable, printable_tree
from ett_reports.report import TaskReport, TaskTry
from ett_reports.slo import TASK_OF, Health, Owned, Verdict
from trainer.run_folder import RunFolder

_OWNED: dict[str, tuple[Owned, ...]] = {
    **{task: (subject,) for subject, task in TASK_OF.items()},
    "launch": (Owned.SCHEDULING,),
    "train": tuple(Owned(component.value) for component in Component),
}
"""What each task is to the service levels; `ett` and `report` measure and are nobody's."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """A task's time by what it was spent on; ns. The five exclude each other and sum to its tries."""

    queue: int = 0
    run: int = 0
    deferred: int = 0
    wasted: int = 0
    retry: int = 0

    @classmethod
    def of(cls, task: TaskReport) -> Spent:
        good = [one for one in task.tries if not one.wasted_ns]
        return cls(
            queue=sum(one.queue_ns for one in task.tries),
            run=sum(one.run_ns for one in good),
            deferred=sum(one.deferred_ns for one in good),
            wasted=sum(one.wasted_ns for one in task.tries),
            retry=sum(one.retry_wait_ns for one in task.tries),
        )


def task(question: Question, now_ns: int) -> Answer:
    """The task's page, or that it has left no stamp yet."""
    reading = read_run(RunFolder.open(question.folders[0]), now_ns)
    refresh = printable_tree(reading.refresh)
    found = None if refresh is None else refresh.task(printable(question.task))
    if refresh is None or found is None:
        return Answer(facts={"known": False}, live=reading.live)
    html = rendered(
        "task.html.j2",
        task=found,
        refresh=refresh,
        spent=Spent.of(found),
        lane=_lane(found),
        ticks=ticks(found.interval_ns),
        verdicts=_verdicts(reading, question.task),
        inside={component.value: spent for component, spent in found.components.items()},
        open=any(one.end_ns is None for one in found.tries),
        now_ns=now_ns,
    )
    return Answer(html=html, facts={"known": True}, live=reading.live)


def _verdicts(reading: Reading, task: str) -> tuple[Verdict, ...]:
    """The task's own service levels; of a run without a training job only owners and limits are known."""
    subjects = _OWNED.get(task, ())
    if reading.document is not None:
        judged = printable_tree(reading.document.judgement)
        return tuple(judged.verdict(subject) for subject in subjects)
    levels, owners = reading.policy.service_levels, printable_tree(reading.policy.owners)
    return tuple(
        Verdict(
            subject=subject,
            health=Health.PENDING if subject in levels else Health.UNSET,
            spent_ns=None,
            limit_ns=None,
            level=levels.get(subject),
            owner=owners.get(subject),
            reason="no training job was submitted, so nothing was judged",
        )
        for subject in subjects
    )


def _lane(task: TaskReport) -> Lane:
    whole = max(1, task.interval_ns)
    return Lane(
        name=task.task,
        note="",
        kind="task",
        blocks=tuple(
            Block(
                left=round(100 * (start - task.start_ns) / whole, 4),
                width=round(100 * (end - start) / whole, 4),
                layers=(Layer(paint=paint, top=0, height=100),),
                title=f"try {one.number}: {name} {duration(end - start)}",
                label=name if end - start > 0.14 * whole else "",
            )
            for one in task.tries
            for paint, name, start, end in _pieces(task, one)
            if end > start
        ),
    )


def _pieces(task: TaskReport, one: TaskTry) -> Iterator[tuple[str, str, int, int]]:
    """A try from the end of the one before. How often it was deferred in between is not kept: that part comes last."""
    end = task.end_ns if one.end_ns is None else one.end_ns
    code = end if one.code_start_ns is None else one.code_start_ns
    yield "retry", "retry wait", one.ready_ns - one.retry_wait_ns, one.ready_ns
    yield "queue", "queue", one.ready_ns, code
    if one.wasted_ns:
        yield "wasted", "wasted", code, end
        return
    yield "run", "run", code, end - one.deferred_ns
    yield "deferred", "deferred", end - one.deferred_ns, end
