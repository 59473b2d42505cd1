"""The ranks of one job as processes of this machine, arranged by TorchX's local scheduler: new ones, or forked warm."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainer.launch.job_folder import JobFolder
from trainer.launch.jobs import RankStatus
from trainer.launch.kept_ranks import BorrowedKeeper, KeptRank, NotStartedError
from trainer.launch.processes import catches, descendants, marked

if TYPE_CHECKING:
    from torchx.specs import AppDef

STACKS_SIGNAL = signal.SIGUSR1
"""A rank that handles it answers with the stacks of all of its threads on stderr (faulthandler)."""

RankProcess = subprocess.Popen[bytes] | KeptRank

log = logging.getLogger(__name__)


class RankGroup:
    """Starts the ranks, each the leader of its own session, and tells who ended when and how."""

    def __init__(self) -> None:
        self._processes: dict[int, RankProcess] = {}
        self._statuses: dict[int, RankStatus] = {}
        self._watches: dict[int, int] = {}
        self._poll = select.poll()
        self._scheduler: Any = None
        self._app_id: str | None = None
        self._keeper: BorrowedKeeper | None = None
        self._news: int | None = None

    def prepare(self) -> None:
        """Import what starting takes, so that it costs no time in which devices are held."""
        self._scheduler = _local_scheduler(self._forked, self._started)

    def start(self, app: AppDef, log_dir: Path, keeper: BorrowedKeeper | None) -> None:
        """Run the application's ranks with logs below `log_dir`, forked by `keeper` if there is one.

        After an error `alive` has those that started.
        """
        if keeper is not None:
            self._keeper, self._news = keeper, keeper.fileno()
            self._poll.register(self._news, select.POLLIN)
        self._app_id = self._scheduler.submit(app, {"log_dir": str(log_dir)})

    def _forked(self, args: Any, env: Any, stdout: Any, stderr: Any, cwd: Any) -> KeptRank | None:
        """A warm rank, or None if it must be a new process; `args` is PYTHON -m MODULE ARGUMENT..."""
        if self._keeper is None or self._keeper.gone:
            return None
        try:
            return self._keeper.start(args[2], args[3:], env, cwd, (stdout.fileno(), stderr.fileno()))
        except NotStartedError as error:
            log.warning("rank %s is started cold: %s", env["RANK"], error)
            self._stop_watching_a_lost_keeper()
            return None

    def _started(self, rank: int, process: RankProcess) -> None:
        self._processes[rank] = process
        started = psutil.Process(process.pid).create_time()  # a zombie still has one
        self._statuses[rank] = RankStatus(rank=rank, pid=process.pid, pid_started=started)
        if isinstance(process, subprocess.Popen):  # of a kept one the keeper tells
            descriptor = os.pidfd_open(process.pid)
            self._watches[rank] = descriptor
            self._poll.register(descriptor, select.POLLIN)

    @property
    def statuses(self) -> tuple[RankStatus, ...]:
        return tuple(self._statuses[rank] for rank in sorted(self._statuses))

    @property
    def alive(self) -> tuple[int, ...]:
        return tuple(rank for rank, status in sorted(self._statuses.items()) if status.exit_code is None)

    def wait(self, timeout_s: float) -> Sequence[RankStatus]:
        """Ranks that ended, as soon as one does or after `timeout_s`; each is told once."""
        self._poll.poll(timeout_s * 1000)
        now = time.time_ns()
        ended = []
        for rank in self.alive:
            code = self._processes[rank].poll()
            if code is not None:
                self._statuses[rank] = replace(self._statuses[rank], exit_code=code, ended_ns=now)
                if rank in self._watches:
                    self._poll.unregister(self._watches[rank])
                    os.close(self._watches.pop(rank))
                ended.append(self._statuses[rank])
        self._stop_watching_a_lost_keeper()
        return ended

    def _stop_watching_a_lost_keeper(self) -> None:
        if self._news is not None and self._keeper is not None and self._keeper.gone:
            self._poll.unregister(self._news)
            self._news = None

    def everything(self, folder: JobFolder) -> list[psutil.Process]:
        """Every process of the job that can be found, also those that left its sessions or lost their parents."""
        kept = [] if self._keeper is None else self._keeper.descendants()
        return list({process.pid: process for process in [*descendants(), *kept, *marked(folder)]}.values())

    def signal_ranks(self, number: signal.Signals) -> None:
        """To the ranks alone, as a scheduler's notice goes to the job's processes and not to their helpers."""
        for rank in self.alive:
            self._processes[rank].send_signal(number)

    def signal_groups(self, number: signal.Signals) -> None:
        """To the ranks and what they started."""
        for rank in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[rank].pid, number)

    def ask_for_stacks(self) -> None:
        """Have every rank that can write the stacks of its threads into its log, also one that is stopped."""
        for rank in self.alive:
            process = self._processes[rank]
            if catches(process.pid, STACKS_SIGNAL):
                process.send_signal(STACKS_SIGNAL)
                process.send_signal(signal.SIGCONT)  # a stopped process has its signals delivered only when it goes on

    def close(self) -> None:
        """Complete the log files; the ranks must be gone."""
        if self._app_id is not None:
            self._scheduler.describe(self._app_id)  # noticing the end is what closes them
        if self._keeper is not None:
            self._keeper.close()


def _local_scheduler(forked: Any, started: Any) -> Any:
    """TorchX's `local_cwd` with its processes in our hands: it neither exposes them nor survives its own process."""
    from torchx.schedulers.local_scheduler import CWDImageProvider, LocalScheduler

    class ExposedLocalScheduler(LocalScheduler):
        def run_local_job(self, args: Any, env: Any, stdout: Any, stderr: Any, cwd: Any = None) -> Any:
            process = forked(args, env, stdout, stderr, cwd) or super().run_local_job(args, env, stdout, stderr, cwd)
            started(int(env["RANK"]), process)
            return process

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    scheduler = ExposedLocalScheduler("ett", CWDImageProvider)
    for number, handler in handlers.items():  # it installs its own, which would raise in the middle of our work
        signal.signal(number, handler)
    return scheduler
