"""The published JSON Schema is the code's, and what is written fits it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ett_reports
from ett_reports.document import ReportDocument
from ett_reports.report import JobReport, RefreshReport
from ett_reports.report_schema import FILE_NAME, dumps, report_schema
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import (
    busy_job,
    failed_once_job,
    hostile_job,
    job_report,
    quiet_job,
    refresh_report,
)

POLICY = policy_from({"scheduling": {"team": "capacity"}}, {"scheduling": {"share": 0.1}, "data": {"seconds": 5}})


def document(job: JobReport, refresh: RefreshReport | None = None) -> dict[str, Any]:
    judgement = judge(Snapshot(job=job, refresh=refresh, policy=POLICY))
    report = ReportDocument(title="t", job=job, refresh=refresh, judgement=judgement, spec={"model": "m"})
    found: dict[str, Any] = json.loads(report.dumps())
    return found


def test_published_schema_is_current() -> None:
    published = Path(ett_reports.__file__).parent / "schema" / FILE_NAME
    assert published.read_text() == dumps(), f"run: python -m ett_reports.report_schema > {published}"


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


@pytest.mark.parametrize(
    "job", [quiet_job(), failed_once_job(), busy_job(3), hostile_job("\x00\ud800<"), job_report([])], ids=range(5)
)
@pytest.mark.parametrize("refresh", [None, refresh_report()], ids=["job", "refresh"])
def test_documents_fit(job: JobReport, refresh: RefreshReport | None) -> None:
    jsonschema.Draft202012Validator(report_schema()).validate(document(job, refresh))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("job", "wall_ns"), 1.5),
        (("job", "l2", "compilation"), 1),
        (("job", "segments", 0, "phase"), "nap"),
        (("job", "failures"), None),
        (("judgement", "verdicts", 0, "health"), "fine"),
        (("version",), 2),
    ],
)
def test_what_is_wrong_is_refused(path: tuple[Any, ...], value: Any) -> None:
    found: Any = document(failed_once_job())
    place = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(report_schema()).validate(found)
