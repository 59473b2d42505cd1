"""The few figures of a run that a list of refreshes shows, read from its written report alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ett_airflow.ui.question import Answer, Question
from ett_reports.codec import CodecError, decode
from ett_reports.render.untrusted import printable
from ett_reports.slo import TITLE, Judgement, Verdict


def headlines(question: Question, now_ns: int) -> Answer:
    """By folder: ETT, state, purpose, and the service levels that were broken; null where there is no usable report."""
    return Answer(facts={folder: _headline(Path(folder) / "report" / "ett.json") for folder in question.folders})


def _headline(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
        job = document["job"]
        judgement = decode(Judgement, document["judgement"])
        share = decode(float | None, job["ett"])  # type: ignore[arg-type]
        return {
            "ett": share,
            "state": str(job["state"]),
            "purpose": str(document["spec"].get("purpose", "daily")),
            "degraded": bool(job["degraded"]),
            "breaches": [_breach(verdict) for verdict in judgement.breaches],
        }
    except (OSError, ValueError, KeyError, TypeError, CodecError, RecursionError):
        return None


def _breach(verdict: Verdict) -> dict[str, Any]:
    return {
        "subject": verdict.subject.value,
        "title": TITLE[verdict.subject],
        "spent_ns": verdict.spent_ns,
        "limit_ns": verdict.limit_ns,
        "reason": verdict.reason,
        "owner": printable(verdict.owner.team) if verdict.owner else None,
        "contact": printable(verdict.owner.contact) if verdict.owner and verdict.owner.contact else None,
    }
