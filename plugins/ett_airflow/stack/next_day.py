"""Which days `make refresh` trains next."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from ett_airflow.anchors import completed_anchors
from ett_airflow.partitions import landed_days
from ett_airflow.stack.server import StackError
from ett_airflow.window import ONE_DAY, WindowRequest, decide
from trainer.run_folder import data_root, runs_root
from trainer.spec import RefreshSpec, RunType, Window

DAYS_LEFT_TO_REFRESH = 7
"""The first window ends this many days before the newest, so that the next calls have days to go on with."""


def next_window(spec: RefreshSpec) -> Window:
    """The first window of a new refresh, later the first landed day that no anchor covers.

    Raises:
        NothingToTrainError: every landed day is trained.
        StackError: no data has landed.
    """
    landed = landed_days(data_root(spec.data.root))
    if not landed:
        raise StackError(f"no data of {spec.name} has landed in {data_root(spec.data.root)}")
    anchors = completed_anchors(runs_root() / spec.name)
    request = WindowRequest(run_type=RunType.MANUAL)
    decision = decide(spec, request, anchors=anchors, landed=landed, today=datetime.now(UTC).date())
    if decision.anchor is not None:
        return decision.window
    return _first_window(spec, landed[0], landed[-1])


def _first_window(spec: RefreshSpec, oldest: date, newest: date) -> Window:
    span = (newest - oldest).days + 1
    end = newest + ONE_DAY - timedelta(days=min(DAYS_LEFT_TO_REFRESH, span // 2))
    return Window(start=max(oldest, end - timedelta(days=spec.data.first_window_days)), end=end)


def run_id_for(spec: RefreshSpec, window: Window) -> str:
    """The last day of the window, with a number behind it if an earlier run took that name."""
    name = (window.end - ONE_DAY).isoformat()
    taken = {folder.name for folder in (runs_root() / spec.name).glob(f"{name}*")}
    return next(each for each in (name, *(f"{name}-{n}" for n in range(2, 10_000))) if each not in taken)
