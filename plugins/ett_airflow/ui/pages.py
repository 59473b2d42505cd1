"""The pages below /ett: all refreshes, a run live and afterwards, a task's share, two runs compared."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from ett_airflow.descendants import why_stale
from ett_airflow.outcome import TASKS
from ett_airflow.ui.access import MAY_READ_RUN, MAY_READ_TASK, ReadableDagIds
from ett_airflow.ui.addresses import NoSuchRunError, folder_named, run_address, task_address
from ett_airflow.ui.answers import Answers
from ett_airflow.ui.fleet import PER_PAGE, TREND, Fleet
from ett_airflow.ui.page import fragment, page
from ett_airflow.ui.question import Answer, Question, View
from ett_airflow.ui.records import (
    Found,
    RunRecord,
    TaskRecord,
    find_refreshes,
    find_run,
    runs_of,
    tasks_of,
)
from trainer.run_folder import RunFolder

MOST_TO_COMPARE = 100

app = FastAPI(title="ETT", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
answers = Answers()
fleet = Fleet(answers)


class ShownRun:
    """The run that a request names, as Airflow knows it; the guard of the route has said that it may be seen."""

    def __init__(self, session: SessionDep, dag_id: Annotated[str, Query()], run_id: Annotated[str, Query()]) -> None:
        record = find_run(session, dag_id, run_id)
        if record is None:
            raise HTTPException(404, "no such run")
        self.record: RunRecord = record
        self.folder: RunFolder = _folder(dag_id, run_id)
        self.tasks: list[TaskRecord] = list(tasks_of(session, dag_id, run_id, TASKS))
        self.begun = self.folder.root.is_dir()

    async def ask(self, view: View, task: str = "") -> Answer:
        """What the run's folder has to say; an empty answer before there is one."""
        if not self.begun:
            return Answer()
        return await answers.ask(Question(view=view, folders=(str(self.folder.root),), task=task))

    def place(self) -> dict[str, Any]:
        """What every page of a run says about where the reader is."""
        dag_id, run_id = self.record.dag_id, self.record.run_id
        return {
            "run": self.record,
            "address": run_address(dag_id, run_id),
            "tasks": [(task, task_address(dag_id, run_id, task.task_id)) for task in self.tasks],
        }


Shown = Annotated[ShownRun, Depends()]


@app.get("/run", dependencies=MAY_READ_RUN)
async def run_page(shown: Shown) -> HTMLResponse:
    """One run: its moving figures while it runs, and its report as far as it goes."""
    if shown.record.ended:
        report, figures = await shown.ask(View.REPORT), Answer()
    else:
        report, figures = await asyncio.gather(shown.ask(View.REPORT), shown.ask(View.FIGURES))
    stale = await asyncio.to_thread(why_stale, shown.folder)
    values = {"figures": figures, "stale": stale, **_report_values(shown, report), **shown.place()}
    return page("run.html.j2", title=f"{shown.record.run_id}: ETT", **values)


@app.get("/figures", dependencies=MAY_READ_RUN)
async def run_figures(shown: Shown) -> HTMLResponse:
    """The part of a run's page that moves; header `ETT-Run` says `running` or `ended`."""
    figures = await shown.ask(View.FIGURES)
    state = "ended" if shown.record.ended else "running"
    return fragment("moving.html.j2", headers={"ETT-Run": state}, figures=figures, **shown.place())


@app.get("/report", dependencies=MAY_READ_RUN)
async def run_report(shown: Shown) -> HTMLResponse:
    """The report part of a run's page, to be put in the place of an older one."""
    report = await shown.ask(View.REPORT)
    return fragment("report_part.html.j2", **_report_values(shown, report), **shown.place())


@app.get("/task", dependencies=MAY_READ_TASK)
async def task_page(shown: Shown, task_id: Annotated[str, Query()]) -> HTMLResponse:
    """One task's own share of its refresh."""
    task = next((one for one in shown.tasks if one.task_id == task_id), None)
    if task is None:
        raise HTTPException(404, "no such task")
    share = await shown.ask(View.TASK, task_id)
    return page(
        "task_page.html.j2", title=f"{task_id}: ETT", task=task, share=share, pending=share.pending, **shown.place()
    )


class Compared:
    """What a run can be compared with, and the baseline that was chosen, if any."""

    def __init__(self, session: SessionDep, shown: Shown, baseline: Annotated[str, Query()] = "") -> None:
        dag_id = shown.record.dag_id
        newest = runs_of(session, dag_id, MOST_TO_COMPARE)
        self.others: list[RunRecord] = [run for run in newest if run.run_id != shown.record.run_id]
        self.baseline = baseline
        self.question: Question | None = None
        if baseline:
            if find_run(session, dag_id, baseline) is None:
                raise HTTPException(404, "no such run")
            folders = (str(_folder(dag_id, baseline).root), str(shown.folder.root))
            self.question = Question(view=View.COMPARISON, folders=folders)


@app.get("/compare", dependencies=MAY_READ_RUN)
async def compare_page(shown: Shown, compared: Annotated[Compared, Depends()]) -> HTMLResponse:
    """The run beside a baseline, another run of the same refresh; without one, a choice of them."""
    answer = await answers.ask(compared.question) if compared.question else Answer()
    title = f"{shown.record.run_id} compared: ETT"
    return page(
        "compare_page.html.j2",
        title=title,
        compared=compared,
        comparison=answer,
        pending=answer.pending,
        **shown.place(),
    )


def found_refreshes(
    session: SessionDep,
    readable: ReadableDagIds,
    containing: Annotated[str, Query(max_length=200)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Found:
    """The refreshes that the user may read, by Airflow's own filter."""
    first = (number - 1) * PER_PAGE
    return find_refreshes(session, readable, containing=containing, first=first, most=PER_PAGE, runs=TREND)


@app.get("/refreshes")
async def refreshes_page(
    found: Annotated[Found, Depends(found_refreshes)],
    containing: Annotated[str, Query(max_length=200)] = "",
    number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> HTMLResponse:
    """All refreshes that the user may read."""
    rows, read = await fleet.rows(found.refreshes)
    return page(
        "refreshes.html.j2",
        title="Refreshes: ETT",
        rows=rows,
        total=found.total,
        containing=containing,
        number=number,
        pages=max(1, -(-found.total // PER_PAGE)),
        run_address=run_address,
        problem=read.problem,
        pending=read.pending,
        now_ns=time.time_ns(),
    )


@app.exception_handler(AnyHTTPException)
async def refused(request: Request, error: AnyHTTPException) -> Response:
    """A page for people; whoever asked for a part of one reads the status."""
    return page("refused.html.j2", title="ETT", status=error.status_code, code=error.status_code)


@app.exception_handler(RequestValidationError)
async def misnamed(request: Request, error: RequestValidationError) -> Response:
    """An address that lacks a part leads nowhere."""
    return page("refused.html.j2", title="ETT", status=404, code=404)


def _report_values(shown: ShownRun, report: Answer) -> dict[str, Any]:
    return {"report": report, "begun": shown.begun, "folder": str(shown.folder.root), "now_ns": time.time_ns()}


def _folder(dag_id: str, run_id: str) -> RunFolder:
    try:
        return folder_named(dag_id, run_id)
    except NoSuchRunError:
        raise HTTPException(404, "no such run") from None
