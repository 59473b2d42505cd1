"""The operators' own stamps in the run's event log: Airflow overwrites or delays the ones that it keeps."""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Any

from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.run_folder import RunFolder, safe_name

_PROCESS = re.compile(r"airflow-(?P<task>.+)-t(?P<number>\d+)-\d+(\.\d+)?")


class Stamps:
    """One task process's stamps. Each carries the task and its try; see ett-metric section 12."""

    def __init__(self, folder: RunFolder, *, task: str, try_number: int) -> None:
        identity = ProcessIdentity(
            job=folder.job, source=Source.AIRFLOW, process=safe_name(f"airflow-{task}-t{try_number}-{os.getpid()}")
        )
        self._recorder = Recorder(folder.events_dir, identity)
        self._common: dict[str, Any] = {"task": task, "try_number": try_number}

    def stamp(self, point: Point, *, wall_ns: int | None = None, **attrs: Any) -> None:
        """Record `point` now, or at `wall_ns` (Unix ns) for an instant that lies before the folder existed."""
        self._recorder.point(point, wall_ns=wall_ns, **self._common, **attrs)

    def __enter__(self) -> Stamps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.close()


def newest_try(folder: RunFolder, task: str) -> int:
    """The highest try of a task whose code has begun; 0 for none."""
    matches = (_PROCESS.fullmatch(path.name) for path in folder.events_dir.glob(f"airflow-{task}-t*"))
    return max((int(match["number"]) for match in matches if match and match["task"] == task), default=0)
