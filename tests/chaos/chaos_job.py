"""A training job under attack: submitted to the real launcher, driven attempt by attempt as the train operator does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from injection.chaos_faults import ATTEMPT_VARIABLE, FAULTS_VARIABLE, WITNESS_VARIABLE, Fault, Place, dumps

from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus, Resources, launcher_for
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec

INJECTION = Path(__file__).parent / "injection"
PATIENCE_S = 900.0
_POLL_S = 0.05


@dataclass
class ChaosJob:
    """One run of the refresh and its attempts so far.

    testimony   the folder in which the ranks' witnesses write down what they were handed, and what struck them
    temporary   the folder for temporary files of its processes
    """

    folder: RunFolder
    spec: RefreshSpec
    planned: int
    testimony: Path
    temporary: Path
    attempts: list[JobStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.testimony.mkdir(parents=True)

    @property
    def completed(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].state is JobState.SUCCEEDED

    def key(self, attempt: int) -> JobKey:
        return JobKey(refresh=self.folder.refresh, run=self.folder.run, task="train", attempt=attempt)

    def run(self, *faults: Fault) -> JobStatus:
        """The next attempt, with `faults` in it, to its end."""
        handle = self.submit(*faults)
        return self.end(handle)

    def submit(self, *faults: Fault) -> JobHandle:
        with self._environment(faults):
            return launcher_for("local").submit(self._request(len(self.attempts) + 1))

    def end(self, handle: JobHandle) -> JobStatus:
        """Follow an attempt to its end, in the launcher's eyes: of a job whose supervisor died, ranks may be left."""
        launcher, give_up = launcher_for("local"), time.monotonic() + PATIENCE_S
        while not (status := launcher.describe(handle)).terminal:
            if time.monotonic() > give_up:
                text = "\n".join(launcher.logs(handle, last=40))
                launcher.cancel(handle)
                raise AssertionError(f"attempt {len(self.attempts) + 1} does not end:\n{text}")
            time.sleep(_POLL_S)
        self.attempts.append(status)
        return status

    def finish(self) -> None:
        """One more attempt, without faults, unless the job has completed already; that attempt must complete it."""
        if not self.completed:
            status = self.run()
            assert self.completed, f"an undisturbed attempt ended {status.state}:\n{self.told()}\n{self.log()}"

    def never_struck(self, attempt: int, faults: Sequence[Fault]) -> list[Place]:
        """The places that were never reached, so that nothing befell the job there."""
        told = "".join(path.read_text() for path in self.testimony.glob(f"struck-a{attempt}-*"))
        return [fault.place for fault in faults if str(fault.place) not in told]

    def told(self) -> str:
        """Every attempt's end in a line."""
        return "\n".join(f"attempt {s.attempt}: {s.state} {s.cause or ''} {s.message}" for s in self.attempts)

    def log(self, *, attempt: int | None = None, last: int = 40) -> str:
        """The last lines of every rank of an attempt."""
        handle = launcher_for("local").find(self.key(attempt or len(self.attempts)))
        return "" if handle is None else "\n".join(launcher_for("local").logs(handle, last=last))

    def _request(self, attempt: int) -> JobRequest:
        """As the train operator makes it."""
        resources = self.spec.resources
        return JobRequest(
            key=self.key(attempt),
            command=("trainer",),
            run_folder=self.folder,
            replicas=resources.ranks,
            devices=resources.ranks,
            resources=Resources(cpus=1, memory_mb=4096),
            grace_s=resources.grace_s,
            hang_timeout_s=resources.hang_timeout_s,
        )

    @contextmanager
    def _environment(self, faults: Sequence[Fault]) -> Iterator[None]:
        """What the attempt's supervisor inherits, and its ranks from that."""
        variables: Mapping[str, str] = {
            "PYTHONPATH": f"{INJECTION}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "PYTHONWARNINGS": "ignore",
            "TMPDIR": str(self.temporary),
            FAULTS_VARIABLE: dumps(faults),
            WITNESS_VARIABLE: str(self.testimony),
            ATTEMPT_VARIABLE: str(len(self.attempts) + 1),
        }
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name)
                else:
                    os.environ[name] = value
