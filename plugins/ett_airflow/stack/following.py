"""A run as `make refresh` follows it: tasks from Airflow, samples from the run's event log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ett_airflow.airflow_api import AirflowApi, AirflowApiError
from ett_airflow.outcome import TASKS
from ett_reports.events import Source
from ett_reports.reader import LogError, read_log
from trainer.run_folder import RunFolder

_RATE_WINDOW_S = 10.0


@dataclass(frozen=True)
class Samples:
    """How far the training job is. planned: of the whole stream; None before the trainer has told."""

    done: int
    planned: int | None
    per_second: float | None


@dataclass(frozen=True)
class Snapshot:
    """One look at a run."""

    state: str
    tasks: Mapping[str, str | None]
    samples: Samples | None

    @property
    def ended(self) -> bool:
        return self.state in ("success", "failed")


@dataclass
class Follower:
    """Looks at one run again and again."""

    api: AirflowApi
    dag_id: str
    run_id: str
    folder: RunFolder
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self) -> Snapshot:
        """The run now.

        Raises:
            AirflowApiError: Airflow does not answer.
        """
        state = self.api.dag_run(self.dag_id, self.run_id)["state"]
        found = {each["task_id"]: each["state"] for each in self.api.task_instances(self.dag_id, self.run_id)}
        tasks = {task: found.get(task) for task in TASKS}
        return Snapshot(state, tasks, self._samples() if tasks["launch"] else None)

    def error_of(self, task: str) -> str | None:
        """The last error in the task's own log, for a failure that came before its run folder existed."""
        try:
            number = self.api.tries(self.dag_id, self.run_id, task)[-1]["try_number"]
            path = f"/dags/{self.dag_id}/dagRuns/{self.run_id}/taskInstances/{task}/logs/{number}"
            lines = self.api.get(path, full_content="true")["content"]
        except (AirflowApiError, LookupError):
            return None
        errors = [detail for line in lines if isinstance(line, dict) for detail in line.get("error_detail") or ()]
        return str(errors[-1].get("exc_value")) if errors else None

    def _samples(self) -> Samples | None:
        try:
            log = read_log(self.folder.events_dir)
        except LogError:
            return None
        trainers = [process for process in log.processes if process.identity.source is Source.TRAINER]
        cursors = [window.cursor[-1] for process in trainers for window in process.windows if window.cursor]
        planned = [
            point.attrs["planned_samples"]
            for process in trainers
            for point in process.points
            if point.name == "stream" and "planned_samples" in point.attrs
        ]
        if not trainers:
            return None
        done = max(cursors, default=0)
        return Samples(done, planned[-1] if planned else None, self._rate(done))

    def _rate(self, done: int) -> float | None:
        now = time.monotonic()
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        (_, before), elapsed = self._seen[0], now - self._seen[0][0]
        return (done - before) / elapsed if elapsed > 0 and done > before else None
