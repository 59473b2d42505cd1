"""The pages below /ett: one run's report, for whoever may see its DAG."""

from __future__ import annotations

import html
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from trainer.run_folder import RunFolder, RunFolderError, runs_root, safe_name

app = FastAPI(title="ETT", docs_url=None, redoc_url=None, openapi_url=None)

# The report carries its own styles, runs no script and needs nothing from anywhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@app.get("/run", dependencies=[Depends(requires_access_dag("GET"))])
def run_report(dag_id: Annotated[str, Query()], run_id: Annotated[str, Query()]) -> HTMLResponse:
    """The HTML report of one run, or a page that says that there is none yet."""
    folder = folder_named(dag_id, run_id)
    path = folder.report_dir / "ett.html"
    if path.is_file():
        return HTMLResponse(path.read_text(encoding="utf-8"), headers=_HEADERS)
    told = f"No report of run {html.escape(run_id)} yet: it is written by its last task, <code>report</code>."
    return HTMLResponse(f"<!doctype html><title>ETT</title><p>{told}</p>", status_code=404, headers=_HEADERS)


def folder_named(dag_id: str, run_id: str) -> RunFolder:
    """The run folder below ROOT.

    Raises:
        HTTPException: 404 for names that are none (`~` would mean all DAGs to the guard) or lead elsewhere.
    """
    try:
        folder = RunFolder.of(dag_id, safe_name(run_id))
    except RunFolderError:
        raise HTTPException(404, "no such run") from None
    root = runs_root().resolve()
    if not folder.root.resolve().is_relative_to(root):
        raise HTTPException(404, "no such run")
    return folder
