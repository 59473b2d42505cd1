"""Errors of launching: each says what to do next."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """Something about starting, following or ending a job went wrong."""


class InvalidRequestError(LaunchError, ValueError):
    """A job that cannot run as described."""


class UnknownSchedulerError(LaunchError):
    """A scheduler that no launcher speaks to."""

    def __init__(self, scheduler: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no launcher for scheduler {scheduler!r}; `resources.scheduler` may be {', '.join(known)}")
        self.scheduler = scheduler


class JobNotFoundError(LaunchError):
    """A handle whose job is not known here."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"job {name!r} is not in {where}; a local job is known only on the machine and under the $ETT_HOME "
            "that it was submitted with"
        )
        self.name = name


class ForeignHostError(LaunchError):
    """A local job that belongs to another machine, whose processes cannot be seen from here."""

    def __init__(self, name: str, host: str, here: str) -> None:
        super().__init__(
            f"job {name!r} runs on {host!r}, this is {here!r}: scheduler `local` needs followers on the same host. "
            "Follow it there; if that machine is gone, cancel the job here and submit the next attempt"
        )
        self.name, self.host, self.here = name, host, here


class CapacityError(LaunchError):
    """A job that asks for more devices than this host will ever have free."""

    def __init__(self, name: str, wanted: int, total: int) -> None:
        super().__init__(
            f"job {name!r} asks for {wanted} devices and this host offers {total}; lower `resources.ranks` in the spec "
            "or raise $ETT_LOCAL_SLOTS"
        )
        self.name, self.wanted, self.total = name, wanted, total


class SupervisorStartError(LaunchError):
    """The detached supervisor did not come up; submitting again is safe and starts it anew."""

    def __init__(self, name: str, log_tail: str) -> None:
        super().__init__(f"supervisor of job {name!r} did not start; submit again to retry. Its log ends: {log_tail}")
        self.name, self.log_tail = name, log_tail


class RecordWriteError(LaunchError):
    """A job's record could not be written; whatever it held before is intact."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"cannot write {path}: {error.strerror or error}; nothing was half-written. "
            "Free space or fix permissions there and submit again"
        )
        self.path, self.errno = path, error.errno
