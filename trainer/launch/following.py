"""Following a job's ranks to their end: who failed first, who asked for an end, and how the others leave."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence

from ett_reports.events import Cause
from ett_reports.shipping import Shipper
from trainer.launch.attempt_log import AttemptLog
from trainer.launch.conclusion import ship
from trainer.launch.heartbeat import last_sign_of_life
from trainer.launch.job_folder import JobFolder
from trainer.launch.jobs import JobRequest, RankStatus
from trainer.launch.outcome import Ending, cause_of, ended_how, first_cause
from trainer.launch.processes import end_all, reap_adopted
from trainer.launch.ranks import RankGroup

_TICK_S = 0.1
_SHIP_INTERVAL_S = 1.0
_LATER, _LATER_S = 1.1, 1.0
STACKS_S = 1.0
"""How long ranks have to write their stacks before a hung attempt is ended."""

log = logging.getLogger(__name__)


class Following:
    """Watches running ranks; ends them as asked, or as they fail.

    Attributes:
        ending: the earliest reason for which ranks are being ended.
        failures: ranks that failed before we ended any, or after a preemption that we passed on.
    """

    def __init__(
        self,
        folder: JobFolder,
        request: JobRequest,
        ranks: RankGroup,
        attempt: AttemptLog,
        shipper: Shipper,
        update: Callable[..., None],
    ) -> None:
        self.ending = Ending.NONE
        self.failures: list[RankStatus] = []
        self._folder = folder
        self._request = request
        self._ranks = ranks
        self._attempt = attempt
        self._shipper = shipper
        self._update = update
        self._dismiss_at: float | None = None
        self._kill_at: float | None = None
        self._next_round = 0.0
        self._failure_told = False
        self._started_ns = time.time_ns()

    def until_gone(self) -> None:
        """Returns when no rank is left."""
        while self._ranks.alive:
            ended = self._ranks.wait(_TICK_S)
            if ended:
                self._note(ended)
            self._obey()
            self._dismiss_when_due()
            self._enforce_grace()
            if time.monotonic() >= self._next_round:
                self._next_round = time.monotonic() + _SHIP_INTERVAL_S
                self._make_round()

    def _note(self, ended: Sequence[RankStatus]) -> None:
        """Ranks ended: the first failures decide the outcome, and their peers cannot go on without them."""
        self._update(ranks=self._ranks.statuses)
        for rank in ended:
            log.info("rank %d %s", rank.rank, ended_how(rank.exit_code or 0))
        failures = [rank for rank in ended if rank.exit_code]
        if not failures:
            return
        if self.ending is Ending.PREEMPTED:
            self.failures += failures
            self._tell_failure(first_cause(failures), Cause.PREEMPTION)
        elif self.ending is Ending.NONE:
            self.failures += failures
            first = first_cause(failures)
            self._tell_failure(first, cause_of(first.exit_code or 0))
            self._dismiss_peers(first)

    def _dismiss_peers(self, first: RankStatus) -> None:
        """The others cannot go on without `first`. What they get before they are told to leave depends on its end."""
        cause, peer_grace_s = cause_of(first.exit_code or 0), self._request.peer_grace_s
        if cause is Cause.PREEMPTION:
            # Ranks that save leave together, and a second warning would cut a slower one short. But one that waits in
            # startup for a peer that is gone must be told.
            self._begin(Ending.RANK_PREEMPTED, grace_s=self._request.grace_s, dismiss_in_s=peer_grace_s)
        elif cause is Cause.HANG:
            self._ranks.ask_for_stacks()
            self._begin(Ending.RANK_FAILED, grace_s=STACKS_S + peer_grace_s, dismiss_in_s=STACKS_S)
        else:
            self._begin(Ending.RANK_FAILED, grace_s=peer_grace_s, dismiss_in_s=0.0)

    def _obey(self) -> None:
        """Requests of others. A cancellation also overtakes a preemption that is under way."""
        if self.ending in (Ending.NONE, Ending.PREEMPTED) and self._folder.cancel_path.exists():
            self.failures.clear()
            self._begin(Ending.CANCELLED, grace_s=self._request.grace_s, dismiss_in_s=0.0)
            self._tell(Cause.CANCELLED, failed_ns=time.time_ns(), exit_code=None, message="cancelled")
        elif self.ending is Ending.NONE and self._folder.preempt_path.exists():
            self._begin(Ending.PREEMPTED, grace_s=self._request.grace_s, dismiss_in_s=None)
            self._ranks.signal_ranks(signal.SIGTERM)

    def _begin(self, ending: Ending, *, grace_s: float, dismiss_in_s: float | None) -> None:
        """From now on the ranks are being ended: with what they started told to leave in `dismiss_in_s`, if ever."""
        log.info("ending: %s, by force in %.0f s", ending, grace_s)
        self.ending = ending
        now = time.monotonic()
        self._kill_at = now + grace_s
        self._dismiss_at = None if dismiss_in_s is None else now + dismiss_in_s

    def _dismiss_when_due(self) -> None:
        if self._dismiss_at is not None and time.monotonic() >= self._dismiss_at:
            self._dismiss_at = None
            self._ranks.signal_groups(signal.SIGTERM)

    def _enforce_grace(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at and self._ranks.alive:
            log.warning("ranks %s did not leave within their grace time", list(self._ranks.alive))
            end_all(lambda: self._ranks.everything(self._folder))

    def _make_round(self) -> None:
        self._attempt.heartbeat()
        reap_adopted(rank.pid for rank in self._ranks.statuses)
        ship(self._shipper)
        self._check_for_hang()

    def _check_for_hang(self) -> None:
        timeout_s = self._request.hang_timeout_s
        if timeout_s is None or self.ending is not Ending.NONE:
            return
        last_seen = max(last_sign_of_life(self._folder.events_dir) or 0, self._started_ns)
        # The ranks' own watchdogs go by the same time and tell more, so they have the first word.
        if time.time_ns() - last_seen < (timeout_s * _LATER + _LATER_S) * 1e9:
            return
        self._ranks.ask_for_stacks()
        self._begin(Ending.HUNG, grace_s=STACKS_S + self._request.peer_grace_s, dismiss_in_s=STACKS_S)
        self._tell(Cause.HANG, failed_ns=last_seen, exit_code=None, message=f"silent for {timeout_s:g} s")

    def _tell_failure(self, rank: RankStatus, cause: Cause) -> None:
        self._tell(
            cause,
            failed_ns=rank.ended_ns or time.time_ns(),
            exit_code=rank.exit_code,
            message=f"rank {rank.rank} {ended_how(rank.exit_code or 0)}",
        )

    def _tell(self, cause: Cause, *, failed_ns: int, exit_code: int | None, message: str) -> None:
        """One failure an attempt; what happens while it is ended is not another."""
        if not self._failure_told:
            self._failure_told = True
            self._attempt.failed(
                cause, failed_ns=failed_ns, detected_ns=time.time_ns(), exit_code=exit_code, message=message
            )
