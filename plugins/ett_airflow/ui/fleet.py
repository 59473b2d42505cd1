"""All refreshes at a glance: each with its last ETT%, the trend, how fresh its model is, and what is broken."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ett_airflow.ui.addresses import NoSuchRunError, folder_named
from ett_airflow.ui.answers import Answers
from ett_airflow.ui.published import Published, published
from ett_airflow.ui.question import Answer, Question, View
from ett_airflow.ui.records import RefreshRecord, RunRecord
from trainer.spec import Purpose

TREND = 12
PER_PAGE = 50
_MOST_KEPT = 20_000
_WIDTH, _HEIGHT, _EDGE = 132, 30, 3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run with a report, and that report's headline."""

    run: RunRecord
    headline: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Trend:
    """ETT over the last runs as a line, 0 to 100% from bottom to top; pixels."""

    points: str
    last: tuple[float, float]
    text: str
    width: int = _WIDTH
    height: int = _HEIGHT


@dataclass(frozen=True, kw_only=True)
class Row:
    """One refresh as the page shows it."""

    refresh: RefreshRecord
    newest: RunRecord | None
    measured: Measured | None
    trend: Trend | None
    published: Published | None

    @property
    def breaches(self) -> list[dict[str, Any]]:
        return [] if self.measured is None else self.measured.headline["breaches"]


@dataclass
class Fleet:
    """Headlines kept by the file that they were read from."""

    answers: Answers
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: OrderedDict[tuple[str, int, int], dict[str, Any] | None] = field(default_factory=OrderedDict)

    async def rows(self, refreshes: Sequence[RefreshRecord]) -> tuple[list[Row], Answer]:
        """A row for each refresh, and what came of reading the headlines that were missing."""
        reports = await asyncio.to_thread(_reports, refreshes)
        missing = [key for key in reports.values() if key not in self._kept]
        read = await self._read(missing) if missing else Answer()
        with self._lock:
            found = {run: self._kept.get(key) for run, key in reports.items()}
        return await asyncio.to_thread(lambda: [_row(each, found) for each in refreshes]), read

    async def _read(self, missing: Sequence[tuple[str, int, int]]) -> Answer:
        question = Question(view=View.HEADLINES, folders=tuple(folder for folder, _, _ in missing))
        answer = await self.answers.ask(question)
        with self._lock:
            for key in missing:
                if not answer.problem and not answer.pending:
                    self._kept[key] = answer.facts.get(key[0])
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return answer


def _reports(refreshes: Sequence[RefreshRecord]) -> dict[tuple[str, str], tuple[str, int, int]]:
    """By DAG and run: the key of each report that was written."""
    runs = [run for each in refreshes for run in each.runs]
    return {(run.dag_id, run.run_id): key for run in runs if (key := _report_key(run)) is not None}


def _report_key(run: RunRecord) -> tuple[str, int, int] | None:
    """The run folder and the identity of its report; None if it has none."""
    try:
        folder = folder_named(run.dag_id, run.run_id)
        found = (folder.report_dir / "ett.json").stat()
    except (NoSuchRunError, OSError):
        return None
    return str(folder.root), found.st_ino, found.st_mtime_ns


def _row(refresh: RefreshRecord, found: dict[tuple[str, str], dict[str, Any] | None]) -> Row:
    measured = [
        Measured(run=run, headline=headline)
        for run in refresh.runs
        if (headline := found.get((run.dag_id, run.run_id))) is not None and _counts(headline)
    ]
    return Row(
        refresh=refresh,
        newest=refresh.runs[0] if refresh.runs else None,
        measured=measured[0] if measured else None,
        trend=_trend([one.headline["ett"] for one in reversed(measured)]),
        published=published(refresh.dag_id),
    )


def _counts(headline: dict[str, Any]) -> bool:
    """Whether a run says how the refresh fares: a tuning run is somebody's trial."""
    return headline["ett"] is not None and headline["purpose"] != Purpose.TUNING


def _trend(shares: Sequence[float]) -> Trend | None:
    """Oldest first; None for fewer than two."""
    if len(shares) < 2:
        return None
    across, down = _WIDTH - 2 * _EDGE, _HEIGHT - 2 * _EDGE
    places = [
        (round(_EDGE + across * index / (len(shares) - 1), 1), round(_EDGE + down * (1 - share), 1))
        for index, share in enumerate(shares)
    ]
    return Trend(
        points=" ".join(f"{left},{top}" for left, top in places),
        last=places[-1],
        text=f"ETT of the last {len(shares)} runs: " + ", ".join(f"{100 * share:.1f}%" for share in shares),
    )
