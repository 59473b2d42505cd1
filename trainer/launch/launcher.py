"""The one interface to every scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from trainer.launch.errors import UnknownSchedulerError
from trainer.launch.jobs import JobHandle, JobKey, JobRequest, JobStatus

SCHEDULERS = ("local",)


class Launcher(Protocol):
    """Submits jobs and follows them. Every call may be made from any process that shares `$ETT_HOME`."""

    def submit(self, request: JobRequest) -> JobHandle:
        """Start the job, or find it again: one key is one job, however often and by how many it is submitted.

        The job gets the environment of who starts it, so that nobody else may: a REGISTERED one is started by `submit`.
        """

    def find(self, key: JobKey) -> JobHandle | None:
        """The job submitted under `key`, alive or ended; None if there was none. Starts nothing."""

    def describe(self, handle: JobHandle) -> JobStatus:
        """The job's state now; changes nothing."""

    def cancel(self, handle: JobHandle) -> None:
        """Ask the job to end, by force after its grace time; `describe` tells when it has. An ended job stays as it is.

        A LOST job is reaped: whatever survived of it is killed and its events are swept up.
        """

    def preempt(self, handle: JobHandle) -> None:
        """Tell the ranks to save and leave (SIGTERM), as a scheduler does that takes the devices back."""

    def logs(self, handle: JobHandle, *, last: int | None = None) -> Iterator[str]:
        """Lines of all ranks so far, each as `[rank] text`; only the `last` of each rank if given."""

    def logs_after(
        self, handle: JobHandle, position: Mapping[int, int], *, limit: int
    ) -> tuple[list[str], dict[int, int]]:
        """Lines written since `position` (rank -> bytes read; empty for the start), and the position behind them.

        Of a rank that wrote more than `limit` bytes since then only the last are given, behind a line that says so.
        """

    def follow_logs(self, handle: JobHandle) -> Iterator[str]:
        """The same lines as they come, until the job ends."""


def launcher_for(scheduler: str) -> Launcher:
    """The launcher of a spec's `resources.scheduler`.

    Raises:
        UnknownSchedulerError: no adapter of that name.
    """
    if scheduler == "local":
        from trainer.launch.local import LocalLauncher

        return LocalLauncher()
    raise UnknownSchedulerError(scheduler, SCHEDULERS)


def newest_attempt(launcher: Launcher, key: JobKey) -> JobHandle | None:
    """The highest attempt of the key's task that was ever submitted; attempts are numbered without gaps."""
    newest = None
    attempt = 1
    while (handle := launcher.find(key.retry(attempt))) is not None:
        newest, attempt = handle, attempt + 1
    return newest
