"""Finding and ending every process of a job, also those that left its sessions or lost their parents."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from trainer.launch.job_folder import Host, JobFolder
from trainer.launch.jobs import RankStatus

JOB_VARIABLE = "ETT_JOB"
JOB_FOLDER_VARIABLE = "ETT_JOB_DIR"
"""In the environment of every process of a job: how its processes are known after their supervisor is gone."""

_PR_SET_CHILD_SUBREAPER = 36
_KILL_PATIENCE_S = 10.0
_DEATH_S = 0.5
_SAME_START_S = 1.0  # psutil derives start times from the boot time, which clock adjustments move a little

log = logging.getLogger(__name__)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parents die, so that none escapes `descendants`."""
    _set_adopting(1)


@contextlib.contextmanager
def adopting_nobody() -> Iterator[None]:
    """For starting a process that leaves this one's descendants, such as a daemon, before there are any others."""
    _set_adopting(0)
    try:
        yield
    finally:
        _set_adopting(1)


def _set_adopting(state: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, state, 0, 0, 0) != 0:
        log.warning("cannot adopt orphans (errno %d); relying on sessions and environments", ctypes.get_errno())


def reap_adopted(ranks: Iterable[int]) -> None:
    """Collect adopted children that ended; those in `ranks` are left to whoever waits for them."""
    awaited = set(ranks)
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in awaited:
            return
        os.waitpid(ended.si_pid, os.WNOHANG)


def descendants() -> list[psutil.Process]:
    """All children of this process, and theirs."""
    return psutil.Process().children(recursive=True)


def marked(folder: JobFolder) -> list[psutil.Process]:
    """Processes that carry the job's marker in their environment."""
    wanted = {f"{JOB_VARIABLE}={folder.name}".encode(), f"{JOB_FOLDER_VARIABLE}={folder.root}".encode()}
    found = []
    for pid in psutil.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if wanted <= set(environment.split(b"\0")):
                found.append(psutil.Process(pid))
        except (OSError, psutil.NoSuchProcess):
            continue  # gone meanwhile, or another user's
    return found


def in_sessions(ranks: Iterable[RankStatus], boot_id: str) -> list[psutil.Process]:
    """Processes in the sessions that the ranks led, as far as these numbers still mean the same processes."""
    if boot_id != Host.here().boot_id:
        return []
    sessions = {rank.pid for rank in ranks if not _reused(rank)}
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) in sessions:
                found.append(psutil.Process(pid))
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


def _reused(rank: RankStatus) -> bool:
    """Whether the rank's process id names another process by now."""
    try:
        return abs(psutil.Process(rank.pid).create_time() - rank.pid_started) > _SAME_START_S
    except psutil.NoSuchProcess:
        return False


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for a signal, which would else end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def end_all(find: Callable[[], Iterable[psutil.Process]]) -> int:
    """Kill what `find` returns until it returns nothing (a process may fork while we look). Returns how many."""
    killed: set[int] = set()
    give_up = time.monotonic() + _KILL_PATIENCE_S
    while living := [process for process in find() if _living(process)]:
        for process in living:
            killed.add(process.pid)
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                log.warning("not allowed to kill process %d", process.pid)
        _await_deaths(living)
        if time.monotonic() > give_up:
            log.error("processes %s do not die (blocked in the kernel?)", sorted(p.pid for p in living))
            break
    return len(killed)


def _await_deaths(processes: Iterable[psutil.Process]) -> None:
    """Without collecting exit codes, as psutil's own wait would: those belong to whoever started the process."""
    give_up = time.monotonic() + _DEATH_S
    while any(_living(process) for process in processes) and time.monotonic() < give_up:
        time.sleep(0.01)


def _living(process: psutil.Process) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
