"""Whole jobs under the real launcher: preempted, hung, and joined by a process that should be long gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from training_job import Job

from ett_reports.events import Cause, Phase
from ett_reports.flight_recorder import read_flight
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from trainer import stage_file
from trainer.checkpoint import newest_complete
from trainer.checkpoint.durable import seal, unseal
from trainer.checkpoint.manifest import FORMAT_VERSION
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, JobStatus
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import LocalLauncher
from trainer.preempted_marker import PreemptedMarker
from trainer.spec import RunInfo, RunSpec, dump_run_spec, load_run_spec
from trainer.stage_file import StageReport

JobFactory = Callable[..., Job]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OFTEN = {"interval_s": 0.3, "keep": 3}
PATIENCE_S = 300.0


@dataclass
class Launched:
    """A training job whose attempts the local scheduler runs."""

    job: Job
    attempts: int = 0

    @property
    def handle(self) -> JobHandle:
        handle = LocalLauncher().find(self._key)
        assert handle is not None
        return handle

    @property
    def _key(self) -> JobKey:
        return JobKey(refresh=self.job.folder.refresh, run=self.job.folder.run, task="train", attempt=self.attempts)

    def submit(self, **fields: Any) -> None:
        self.attempts += 1
        request = JobRequest(
            key=self._key, command=("trainer",), run_folder=self.job.folder, replicas=2, devices=2, **fields
        )
        LocalLauncher().submit(request)

    def status(self) -> JobStatus:
        return LocalLauncher().describe(self.handle)

    def until(self, what: str, found: Callable[[], Any]) -> None:
        """Poll until `found` gives something; the attempt must be alive until then."""
        give_up = time.monotonic() + PATIENCE_S
        while not found():
            assert not self.status().terminal, f"ended before {what}: {self.status().message}\n{self.log()}"
            assert time.monotonic() < give_up, f"no {what}:\n{self.log()}"
            time.sleep(0.02)

    def until_it_trains(self) -> None:
        flight = self._rank_0 / "flight.bin"
        self.until("a step", lambda: (state := read_flight(flight)) is not None and state.cursor)

    def until_it_is_warned(self) -> None:
        log = self._rank_0 / "000001.jsonl"
        self.until("the warning", lambda: "preemption_notice" in log.read_text())

    @contextmanager
    def paused_in_the_loop(self) -> Iterator[None]:
        """Rank 1 is stopped after a first step, and the others wait for it: the loop lasts for as long as one likes."""
        self.until_it_trains()
        rank = self.status().ranks[1]
        os.kill(rank.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(rank.pid, signal.SIGCONT)

    @property
    def _rank_0(self) -> Path:
        return JobFolder.of(self.handle.id).events_dir / f"trainer-a{self.attempts}-r0"

    def end(self) -> JobStatus:
        give_up = time.monotonic() + PATIENCE_S
        while not self.status().terminal:
            assert time.monotonic() < give_up, f"it does not end:\n{self.log()}"
            time.sleep(0.05)
        return self.status()

    def stage(self) -> StageReport | None:
        """What the stage file says, once it is this attempt's."""
        found = stage_file.read(self.job.folder)
        return found if found is not None and found.attempt == self.attempts else None

    def log(self, rank: int | None = None) -> str:
        lines = LocalLauncher().logs(self.handle, last=200)
        return "\n".join(line for line in lines if rank is None or line.startswith(f"[{rank}]"))


LaunchJob = Callable[..., Launched]


@pytest.fixture
def launch(new_job: JobFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LaunchJob]:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def make(run: str, **sections: Any) -> Launched:
        return Launched(new_job(run, **sections))

    yield make
    terminal(["cancel", "--all"])


def change_spec(job: Job, **sections: dict[str, Any]) -> None:
    found = load_run_spec(job.folder.spec_path)
    refresh = found.refresh.model_dump(mode="json", exclude_none=True)
    for section, values in sections.items():
        refresh[section] = {**refresh[section], **values}
    info: RunInfo = found.run
    dump_run_spec(RunSpec(refresh=type(found.refresh).model_validate(refresh), run=info), job.folder.spec_path)


def test_a_preemption_saves_what_fits_the_grace_time_and_skips_what_does_not(launch: LaunchJob) -> None:
    launched = launch("grace", checkpoint=OFTEN)
    folder, checkpoints = launched.job.folder, launched.job.folder.checkpoints_dir
    launched.submit(grace_s=60.0)
    with launched.paused_in_the_loop():
        launched.until("the stage file", lambda: (now := launched.stage()) and now.samples_at_risk is not None)
        live = launched.stage()
        LocalLauncher().preempt(launched.handle)
        launched.until_it_is_warned()
    status = launched.end()
    assert (status.state, [rank.exit_code for rank in status.ranks]) == (JobState.PREEMPTED, [75, 75]), launched.log()
    saved, marker, last = newest_complete(checkpoints), PreemptedMarker.read(folder), launched.stage()
    assert live and saved and marker and last
    assert live.stage in (Phase.STEP, Phase.CHECKPOINT_BLOCKING)
    assert (marker.attempt, marker.step, marker.cursor, marker.saved) == (1, saved.step, saved.cursor, True)
    assert launched.job.cursors(attempt=1)[-1] == saved.cursor
    assert (last.stage, last.durable_cursor, last.samples_at_risk) == (Phase.TEARDOWN, saved.cursor, 0)

    took_too_long(saved.path, seconds=10_000.0)
    change_spec(launched.job, checkpoint={"interval_s": 1000.0})
    launched.submit(grace_s=60.0)
    with launched.paused_in_the_loop():
        assert PreemptedMarker.read(folder) is None  # superseded
        LocalLauncher().preempt(launched.handle)
        launched.until_it_is_warned()
    assert launched.end().state is JobState.PREEMPTED, launched.log()
    marker = PreemptedMarker.read(folder)
    assert marker
    assert (marker.attempt, marker.cursor, marker.saved) == (2, launched.job.cursors(attempt=2)[-1], False)
    (skipped,) = launched.job.points("preemption_save_skipped", attempt=2)
    assert skipped["estimated_s"] == 10_000.0
    assert 0 < skipped["left_s"] < 60
    assert newest_complete(checkpoints) == saved
    assert reduce(read_log(folder.events_dir)).failures[-1].cause is Cause.PREEMPTION


def took_too_long(checkpoint: Path, *, seconds: float) -> None:
    """Make the checkpoint one that a slow disk took `seconds` to hold."""
    path = checkpoint / "manifest.json"
    document = unseal(path, version=FORMAT_VERSION)
    path.write_bytes(seal({**document, "save_seconds": seconds}, version=FORMAT_VERSION))


@pytest.mark.chaos
def test_a_rank_that_is_stopped_in_the_loop_makes_the_job_a_hang_with_every_ranks_stacks(launch: LaunchJob) -> None:
    launched = launch("stopped", resources={"ranks": 2, "device": "cpu", "hang_floor_s": 2.0})
    launched.submit()
    launched.until_it_trains()
    os.kill(launched.status().ranks[1].pid, signal.SIGSTOP)
    status = launched.end()
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.HANG, 70), launched.log()
    assert "hangs: no step for" in status.message
    for rank in (0, 1):
        assert 'trainer/loop.py", line' in launched.log(rank)
    (failure,) = reduce(read_log(launched.job.folder.events_dir)).failures
    assert failure.cause is Cause.HANG
    assert [json.dumps(point["cause"]) for point in launched.job.points("failure")] == ['"hang"']


@pytest.mark.chaos
def test_c20_an_old_attempts_processes_that_come_late_do_not_disturb_the_new_attempt(launch: LaunchJob) -> None:
    launched = launch("late", checkpoint=OFTEN)
    launched.submit()
    launched.until_it_trains()
    ranks = launched.status().ranks
    environments = [environment_of(rank.pid) for rank in ranks]
    os.kill(ranks[1].pid, signal.SIGKILL)
    status = launched.end()
    assert (status.state, status.cause) == (JobState.FAILED, Cause.INFRASTRUCTURE)

    launched.submit()
    launched.until("the second attempt", launched.stage)
    command = [sys.executable, "-m", "trainer"]
    late = [subprocess.run(command, env=each, capture_output=True, text=True, check=False) for each in environments]
    assert [each.returncode for each in late] == [1, 1]
    assert all("attempt 1 of this run is over: attempt 2 has begun" in each.stderr for each in late)
    assert launched.end().state is JobState.SUCCEEDED, launched.log()
    assert launched.job.cursors(attempt=2)[-1] == launched.job.planned
    assert launched.job.quality("progressive", attempt=2)["rows"] == launched.job.planned
    assert [attempt.number for attempt in reduce(read_log(launched.job.folder.events_dir)).attempts] == [1, 2]


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)
