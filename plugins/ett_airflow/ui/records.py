"""What Airflow's own database says of refreshes, runs and tasks: read in the API server, which may."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import func, select
from sqlalchemy.orm import Session

REFRESH_TAG = "refresh"
_ENDED = ("success", "failed")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run of a refresh as Airflow keeps it."""

    dag_id: str
    run_id: str
    state: str
    run_type: str
    begun: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in _ENDED


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """A task of a run; `state` is empty before its turn."""

    task_id: str
    state: str
    try_number: int


@dataclass(frozen=True, kw_only=True)
class RefreshRecord:
    """A refresh's DAG and its newest runs, newest first."""

    dag_id: str
    description: str
    paused: bool
    runs: Sequence[RunRecord]


@dataclass(frozen=True, kw_only=True)
class Found:
    """One page of the refreshes, in alphabetical order, and how many there are on all."""

    total: int
    refreshes: Sequence[RefreshRecord]


def find_run(session: Session, dag_id: str, run_id: str) -> RunRecord | None:
    """The run of exactly this id."""
    found = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    return None if found is None else _record(found)


def runs_of(session: Session, dag_id: str, most: int) -> Sequence[RunRecord]:
    """The newest runs of a refresh, newest first."""
    wanted = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(most)
    return [_record(run) for run in session.scalars(wanted)]


def tasks_of(session: Session, dag_id: str, run_id: str, order: Sequence[str]) -> Sequence[TaskRecord]:
    """The tasks of a run, in `order`; those that are not named there come last."""
    wanted = select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id)
    tasks = [
        TaskRecord(task_id=one.task_id, state=str(one.state or ""), try_number=one.try_number)
        for one in session.scalars(wanted)
    ]
    place = {task: index for index, task in enumerate(order)}
    return sorted(tasks, key=lambda task: (place.get(task.task_id, len(place)), task.task_id))


def find_refreshes(session: Session, readable: Set[str], *, containing: str, first: int, most: int, runs: int) -> Found:
    """Refreshes among the readable DAGs whose name contains the text, each with its newest `runs` runs."""
    wanted = (
        select(DagModel)
        .join(DagTag, DagTag.dag_id == DagModel.dag_id)
        .where(DagTag.name == REFRESH_TAG, DagModel.dag_id.in_(readable), DagModel.is_stale.is_(False))
        .where(DagModel.dag_id.icontains(containing, autoescape=True))
    )
    total = session.scalar(select(func.count()).select_from(wanted.subquery())) or 0
    dags = list(session.scalars(wanted.order_by(DagModel.dag_id).offset(first).limit(most)))
    newest = _newest_runs(session, [dag.dag_id for dag in dags], runs)
    return Found(
        total=total,
        refreshes=[
            RefreshRecord(
                dag_id=dag.dag_id,
                description=dag.description or "",
                paused=bool(dag.is_paused),
                runs=newest.get(dag.dag_id, []),
            )
            for dag in dags
        ],
    )


def _newest_runs(session: Session, dag_ids: Sequence[str], most: int) -> dict[str, list[RunRecord]]:
    place = func.row_number().over(partition_by=DagRun.dag_id, order_by=DagRun.id.desc()).label("place")
    ranked = select(DagRun.id, place).where(DagRun.dag_id.in_(dag_ids)).subquery()
    wanted = select(DagRun).join(ranked, ranked.c.id == DagRun.id).where(ranked.c.place <= most)
    found: dict[str, list[RunRecord]] = {}
    for run in session.scalars(wanted.order_by(DagRun.id.desc())):
        found.setdefault(run.dag_id, []).append(_record(run))
    return found


def _record(run: DagRun) -> RunRecord:
    begun = run.start_date or run.queued_at
    return RunRecord(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=str(run.state),
        run_type=str(run.run_type),
        begun=begun.astimezone(UTC) if begun else None,
    )
