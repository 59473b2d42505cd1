"""Follows a job from the triggerer, without holding a worker slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from ett_airflow.job_log import JobLog
from ett_airflow.live_figure import LiveFigures
from ett_airflow.stamps import newest_try
from trainer.launch import (
    ForeignHostError,
    JobHandle,
    JobNotFoundError,
    JobState,
    JobStatus,
    LaunchError,
    UnknownSchedulerError,
    launcher_for,
)
from trainer.run_folder import RunFolder

POLL_S = 1.0
PATIENCE_S = 120.0
"""How long a scheduler may fail to answer before the task is told; a job outlives such an outage."""

ANSWER_S = 10.0
"""How long a triggerer waits for Airflow's answer before it cancels a job; Airflow grants `on_kill` 30 s in all."""
SHORTEST_S = conf.getint("workers", "min_heartbeat_interval", fallback=5) + 2.0
"""The trigger does not fire sooner than this after its start.

Whoever runs a task notices that its process has ended by the next heartbeat, up to 5 s late by Airflow's default. A
task that goes on before that is taken for one that died (Airflow 3.3).
"""

_HOPELESS = (ForeignHostError, JobNotFoundError, UnknownSchedulerError)


class Until(StrEnum):
    """What a task waits for."""

    HELD = "held"  # the job holds its capacity
    ENDED = "ended"


def reached(status: JobStatus, until: Until) -> bool:
    """Whether `status` is what the task waits for. An ended job ends every wait."""
    return status.terminal or (until is Until.HELD and status.state is JobState.RUNNING)


class WatchTrigger(BaseTrigger):
    """Fires once, when the job has reached what the task waits for, or cannot be followed from here.

    The event is `{"status": JobStatus}` or `{"error": message}`. Whatever happens to this trigger, the job goes on.
    """

    def __init__(self, *, handle: str, until: str, poll_s: float = POLL_S, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self.handle = handle
        self.until = Until(until)
        self.poll_s = poll_s
        self.patience_s = patience_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "handle": self.handle,
            "until": str(self.until),
            "poll_s": self.poll_s,
            "patience_s": self.patience_s,
        }
        return f"ett_airflow.follow.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        payload = await self._wait()
        await asyncio.sleep(max(0.0, began + SHORTEST_S - time.monotonic()))
        yield TriggerEvent(payload)

    async def _wait(self) -> dict[str, Any]:
        silent_s = 0.0
        while True:
            try:
                status = await asyncio.to_thread(self._describe)
                silent_s = 0.0
                await self._tell()
                if reached(status, self.until):
                    return {"status": status.to_dict()}
            except _HOPELESS as error:
                return {"error": str(error)}
            except (LaunchError, OSError, ValueError) as error:
                silent_s += self.poll_s
                self.log.warning("job %s: no answer from its scheduler: %s", self.handle, error)
                if silent_s >= self.patience_s:
                    return {"error": f"no answer about job {self.handle} for {silent_s:.0f} s: {error}"}
            await asyncio.sleep(self.poll_s)

    async def _tell(self) -> None:
        """What people see of the job meanwhile; nothing while only its end is awaited."""

    def _describe(self) -> JobStatus:
        handle = JobHandle.parse(self.handle)
        return launcher_for(handle.scheduler).describe(handle)


class JobTrigger(WatchTrigger):
    """Follows the task's own job: a person who acts on the task (clear, mark failed, mark success) cancels it.

    A triggerer that stops, restarts or hands the trigger over does not. The job's log goes into the task's log; with
    `figures` its progress and live ETT% do too.
    """

    def __init__(self, *, figures: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.figures = figures
        self._log_lines: JobLog | None = None
        self._figures: LiveFigures | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "figures": self.figures}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.figures:
            self._figures = LiveFigures(Path(self._folder.root))
        try:
            async for event in super().run():
                yield event
        finally:
            if self._figures is not None:
                await self._figures.stop()

    async def _tell(self) -> None:
        for line in await asyncio.to_thread(self._new_lines):
            self.log.info("%s", line)
        if self._figures is not None and (figure := self._figures.look()) is not None:
            self.log.info("%s", figure)

    def _new_lines(self) -> list[str]:
        self._log_lines = self._log_lines or JobLog(JobHandle.parse(self.handle))
        return self._log_lines.new_lines()

    async def on_kill(self) -> None:
        if await self._handed_over():
            self.log.info("trigger handed over to another triggerer; job %s goes on", self.handle)
            return
        self.log.info("task was cleared or marked by hand: cancelling job %s", self.handle)
        handle = JobHandle.parse(self.handle)
        await asyncio.to_thread(launcher_for(handle.scheduler).cancel, handle)

    async def _handed_over(self) -> bool:
        """Whether the try still waits: then nobody acted on it, and another triggerer has taken this trigger.

        A triggerer that was thought dead (paused, or cut off) finds its triggers assigned elsewhere and kills them
        as if a person had. In doubt a person acted: a job cancelled in error is resumed, one left alone is orphaned.
        """
        task = self.task_instance
        if task is None or newest_try(self._folder, task.task_id) > task.try_number:
            return False
        try:
            state = await asyncio.wait_for(asyncio.to_thread(_state_of, task), ANSWER_S)
        except Exception as error:
            self.log.warning("cannot ask for the task's state (%r); taking it that a person acted", error)
            return False
        # Asked again: a cleared task's next try may have come as far as waiting while the answer was on its way.
        return state == "deferred" and newest_try(self._folder, task.task_id) <= task.try_number

    @property
    def _folder(self) -> RunFolder:
        return RunFolder.open(JobHandle.parse(self.handle).run_folder_url)


def _state_of(task: Any) -> str | None:
    """The task's state by Airflow's own API, which a triggerer asks in process."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
    )
    return states.get(task.run_id, {}).get(task.task_id)
