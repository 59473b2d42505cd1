"""ett.json: a job's report, its refresh's and their judgement in one versioned document, read and written exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett_reports.advice import answer
from ett_reports.codec import CodecError, decode, encode
from ett_reports.report import JobReport, RefreshReport, ReportError, from_json, to_json
from ett_reports.slo import Judgement

KIND = "ett_report"
DOCUMENT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ReportDocument:
    """One run's results. spec: what the run was, plain values that `compare` reads and the page shows."""

    title: str
    job: JobReport
    refresh: RefreshReport | None
    judgement: Judgement
    spec: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A pure function of the results: writing it again gives the same bytes."""
        document = {
            "kind": KIND,
            "version": DOCUMENT_VERSION,
            "title": self.title,
            "answer": encode(answer(self.job, self.judgement)),
            "job": to_json(self.job),
            "refresh": None if self.refresh is None else to_json(self.refresh),
            "judgement": encode(self.judgement),
            "spec": plain(self.spec),
        }
        finite: dict[str, Any] = _finite(document)
        return finite

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def from_document(document: Any) -> ReportDocument:
    """The inverse of `ReportDocument.to_json`. Raises ReportError."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ReportError(f"not a report: expected an object with kind '{KIND}'")
    if document.get("version") != DOCUMENT_VERSION:
        raise ReportError(
            f"report version {document.get('version')!r}, this program reads {DOCUMENT_VERSION}: "
            "make it again with `python -m ett_reports run EVENTS --out FOLDER`"
        )
    job = from_json(document.get("job"))
    refresh = None if document.get("refresh") is None else from_json(document["refresh"])
    if not isinstance(job, JobReport) or isinstance(refresh, JobReport):
        raise ReportError("not a report: `job` must be a job_report and `refresh` a refresh_report")
    try:
        judgement = decode(Judgement, document.get("judgement"))
        title = decode(str, document.get("title"))
        spec = decode(dict[str, Any], document.get("spec"))
    except CodecError as error:
        raise ReportError(f"not a report: {error}") from error
    return ReportDocument(title=title, job=job, refresh=refresh, judgement=judgement, spec=spec)


def read_document(path: Path) -> ReportDocument:
    """Read ett.json, or the one in a report folder or run folder. Raises ReportError, one line naming the file."""
    for candidate in (path / "ett.json", path / "report" / "ett.json"):
        if candidate.is_file():
            path = candidate
            break
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ReportError(f"{path}: not JSON: expected an ett.json") from None
    try:
        return from_document(document)
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from None


def plain(value: Any) -> Any:
    """Values that JSON holds; whatever else is given becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _finite(value: Any) -> Any:
    """JSON has no NaN: a figure that is not a number is left out of its mapping, as one that nobody told."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not (isinstance(item, float) and not math.isfinite(item))}
        return {key: _finite(item) for key, item in kept.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
