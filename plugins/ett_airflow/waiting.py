"""Waits without a worker slot before a run begins: for its turn in the chain, and for its days to land."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from ett_airflow.chain_lock import ChainLock, Holder, has_trained, is_busy, runs_in_airflow
from ett_airflow.follow import SHORTEST_S
from ett_airflow.partitions import missing_days
from trainer.run_folder import RunFolderError

log = logging.getLogger(__name__)

TURN_POLL_S = 2.0
LANDING_POLL_S = 5.0
_ASK_S = 10.0
"""Between two questions to Airflow: files say most of it."""
_TELL_S = 300.0


class WaitTrigger(BaseTrigger):
    """Looks every `poll_s` until the wait is over, and says now and then what it waits for."""

    poll_s: float

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began, told = time.monotonic(), 0.0
        while (waits_for := await asyncio.to_thread(self._look)) is not None:
            if not told or time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                self.log.info("waiting: %s", waits_for)
            await asyncio.sleep(self.poll_s)
        await asyncio.sleep(max(0.0, began + SHORTEST_S - time.monotonic()))
        yield TriggerEvent({})

    @abstractmethod
    def _look(self) -> str | None:
        """What is waited for, None once it is there. Runs off the event loop."""


class TurnTrigger(WaitTrigger):
    """Fires when the chain's lock may be free for run `run_id`, and `earlier`, a run of an older day, has trained.

    Only an attempt to take the lock tells for sure; a run that was too late waits again.
    """

    def __init__(self, *, dag_id: str, run_id: str, earlier: str | None = None, poll_s: float = TURN_POLL_S) -> None:
        super().__init__()
        self.dag_id = dag_id
        self.run_id = run_id
        self.earlier = earlier
        self.poll_s = poll_s
        self._holder_is_busy = _Paced()
        self._other_is_ahead = _Paced()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"dag_id": self.dag_id, "run_id": self.run_id, "earlier": self.earlier, "poll_s": self.poll_s}
        return "ett_airflow.waiting.TurnTrigger", arguments

    def _look(self) -> str | None:
        holder = ChainLock(self.dag_id).holder()
        mine = holder is None or holder.run_id == self.run_id
        if holder and not mine and self._holder_is_busy.ask(lambda: is_busy(holder, runs_in_airflow)):
            return f"run {holder.run_id} trains; one run of {self.dag_id} trains at a time"
        if self.earlier is not None and self._other_is_ahead.ask(self._is_ahead):
            return f"run {self.earlier} of an earlier day goes first"
        return None

    def _is_ahead(self) -> bool:
        assert self.earlier is not None
        return runs_in_airflow(self.dag_id, self.earlier) and not trained(self.dag_id, self.earlier)


class _Paced:
    """Asks Airflow at most every `_ASK_S`; in between, and while Airflow does not answer, the last answer stands."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._answer = True

    def ask(self, question: Callable[[], bool]) -> bool:
        now = time.monotonic()
        if self._at is None or now - self._at >= _ASK_S:
            self._at = now
            try:
                self._answer = question()
            except Exception as error:  # the SDK raises one of several types when the API server is away
                log.warning("Airflow does not answer, waiting on: %r", error)
        return self._answer


def trained(dag_id: str, run_id: str) -> bool:
    """Whether an Airflow run has its anchor, in the folder that it works in now."""
    from ett_airflow.generation import RunIdentity, RunNameTakenError

    try:
        folder = RunIdentity(dag_id, run_id).folder
    except (RunNameTakenError, RunFolderError):
        return False
    return has_trained(Holder(dag_id=dag_id, run_id=run_id, run=folder.run))


class LandingTrigger(WaitTrigger):
    """Fires when every one of `days` has its landing marker below `root`, or at `until_unix_s`."""

    def __init__(self, *, root: str, days: Sequence[str], until_unix_s: float, poll_s: float = LANDING_POLL_S) -> None:
        super().__init__()
        self.root = root
        self.days = list(days)
        self.until_unix_s = until_unix_s
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"root": self.root, "days": self.days, "until_unix_s": self.until_unix_s, "poll_s": self.poll_s}
        return "ett_airflow.waiting.LandingTrigger", arguments

    def _look(self) -> str | None:
        missing = missing_days(Path(self.root), [date.fromisoformat(day) for day in self.days])
        left_s = self.until_unix_s - time.time()
        if not missing or left_s <= 0:
            return None
        named = ", ".join(str(day) for day in missing[:5]) + (" and more" if len(missing) > 5 else "")
        return f"{named} to land in {self.root}, for up to {left_s:.0f} s more (data.landing_wait_s)"
