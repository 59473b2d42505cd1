"""The checkpointer: stages on the loop's thread, writes and commits in the background (paper IV-C a)."""

from __future__ import annotations

import contextlib
import queue
import secrets
import shutil
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
import torch.distributed as dist

from ett_reports.events import Phase, Point
from ett_reports.recorder import Recorder
from trainer.checkpoint.commit import Save, await_commit, commit, give_up
from trainer.checkpoint.errors import CheckpointError, CheckpointWriteError, NotDurableError
from trainer.checkpoint.manifest import CheckpointKind, CheckpointRef, Lineage, step_folder
from trainer.checkpoint.peers import Peers
from trainer.checkpoint.progress import Progress
from trainer.checkpoint.reference import write_reference_part
from trainer.checkpoint.retention import prune, sweep
from trainer.checkpoint.shards import ShardReport, report_failure, write_shards
from trainer.checkpoint.staging import StagedState, Stager, Staging, State
from trainer.run_folder import RunFolder

COMMIT_TIMEOUT_S = 600.0


class CheckpointMode(StrEnum):
    """SYNC blocks the loop until the commit; ASYNC until the state is copied."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass
class _Job:
    """One save on its way through the writer thread. `staged` is let go once it is on the disk."""

    save: Save
    staged: StagedState | None
    progress: Progress
    reference: pa.Table | None
    started_ns: int
    failure: Exception | None = None
    written: threading.Event = field(default_factory=threading.Event)


class Checkpointer:
    """Saves a job's state; make one on every rank, after the process group is up (one broadcast, the only collective).

    A save that fails is never selectable and does not stop training: it is told by the point `checkpoint_failed`, and
    the next one tries again. Only `save_before_exit`, `save_anchor` and `close` insist, and raise.

    Args:
        lineage: which run this is; goes into every manifest.
        keep: how many committed checkpoints stay.
        commit_timeout_s: how long rank 0 waits for the other ranks' parts before it gives a save up.
    """

    def __init__(
        self,
        run_folder: RunFolder,
        *,
        lineage: Lineage,
        recorder: Recorder,
        keep: int,
        mode: CheckpointMode,
        process_group: dist.ProcessGroup | None = None,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        self._run_folder = run_folder
        self._lineage = lineage
        self._recorder = recorder
        self._keep = keep
        self._mode = mode
        self._commit_timeout_s = commit_timeout_s
        peers = Peers.of(process_group)
        self._rank, self._world_size = peers.rank, peers.world_size
        # The same on every rank and in no other attempt, so that parts of two attempts are never mixed.
        self._incarnation = peers.from_first(secrets.token_hex(4))
        self._stager = Stager(self._rank)
        self._saves = 0
        self._last: _Job | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if self._rank == 0:
            self._sweep()

    @property
    def busy(self) -> bool:
        """Whether the previous save still holds this rank's buffers, so that a save now would wait."""
        return self._last is not None and not self._last.written.is_set()

    def preallocate(self, state: State) -> None:
        """Allocate and fill the buffers ahead of the first save, which otherwise takes about three times as long."""
        if self._mode is CheckpointMode.ASYNC:
            self._stager.stage(state, Staging.COPY)

    def save(self, step: int, state: State, progress: Progress) -> None:
        """Save at the same step on every rank. Blocks as the mode says; values are those of this moment (case C5)."""
        with self._recorder.span(Phase.CHECKPOINT_BLOCKING, step=step):
            job = self._job(CheckpointKind.STEP, step, progress, None)
            if self._mode is CheckpointMode.ASYNC:
                self._dispatch(job, state)
            else:
                self._save_in_place(job, state)

    def save_before_exit(
        self, step: int, state: State, progress: Progress, *, timeout_s: float = 60.0
    ) -> CheckpointRef:
        """Save and wait until it is durable over all ranks: the grace period of a preemption. A save of this very step
        that is already on its way is waited for.

        Raises:
            CheckpointError: it is not durable in time.
        """
        with self._recorder.span(Phase.FINAL_CHECKPOINT, step=step):
            if self._last is not None and self._last.save.step == step:
                return self._await(self._last, timeout_s)
            return self._insist(self._job(CheckpointKind.STEP, step, progress, None), state, timeout_s)

    def save_anchor(
        self, step: int, state: State, progress: Progress, reference: pa.Table, *, timeout_s: float = COMMIT_TIMEOUT_S
    ) -> CheckpointRef:
        """Save what the run hands over (paper IV-D), with this rank's predictions on the holdout (`reference_table`).

        Raises:
            CheckpointError: it is not durable in time (case C4); the run has not succeeded.
        """
        with self._recorder.span(Phase.FINAL_CHECKPOINT, step=step):
            return self._insist(self._job(CheckpointKind.ANCHOR, step, progress, reference), state, timeout_s)

    def wait(self, *, timeout_s: float = 60.0) -> None:
        """Wait until the last save is durable over all ranks.

        Raises:
            CheckpointError: it is not, and will not be or was not in time.
        """
        if self._last is not None:
            self._await(self._last, timeout_s)

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Wait for the last save and stop the thread.

        Raises:
            CheckpointError: the last save is not durable. Calling again does nothing.
        """
        try:
            self.wait(timeout_s=timeout_s)
        finally:
            self._last = None
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
                thread.join(timeout_s)

    # -- on the loop's thread -----------------------------------------------------------------------------------

    def _job(self, kind: CheckpointKind, step: int, progress: Progress, reference: pa.Table | None) -> _Job:
        started_ns = time.monotonic_ns()
        self._saves += 1
        anchored = kind is CheckpointKind.ANCHOR
        target = self._run_folder.anchor_dir if anchored else step_folder(self._run_folder.checkpoints_dir, step)
        save = Save(
            kind=kind,
            step=step,
            target=target,
            save_id=f"{self._incarnation}-{self._saves}",
            world_size=self._world_size,
            lineage=self._lineage,
        )
        return _Job(save, None, progress, reference, started_ns)

    def _dispatch(self, job: _Job, state: State) -> None:
        if self._last is not None and not self._last.written.wait(self._commit_timeout_s):
            detail = "the save before it still holds the buffers; is the storage stuck?"
            self._tell_failure(job, NotDurableError(job.save.target, detail))
            return
        job.staged = self._stager.stage(state, Staging.COPY)
        self._recorder.point(Point.CHECKPOINT_DISPATCHED, step=job.save.step, kind=job.save.kind)
        self._last = job
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _save_in_place(self, job: _Job, state: State) -> None:
        job.staged = self._stager.stage(state, Staging.IN_PLACE)
        self._recorder.point(Point.CHECKPOINT_DISPATCHED, step=job.save.step, kind=job.save.kind)
        self._last = job
        self._run(job)
        if self._rank != 0 and job.failure is None:
            try:
                self._await(job, self._commit_timeout_s)
            except CheckpointError as error:
                self._tell_failure(job, error)

    def _insist(self, job: _Job, state: State, timeout_s: float) -> CheckpointRef:
        self._dispatch(job, state)
        return self._await(job, timeout_s)

    def _await(self, job: _Job, timeout_s: float) -> CheckpointRef:
        return await_commit(job.save, failure=lambda: job.failure, timeout_s=timeout_s)

    # -- on the writer's thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)

    def _run(self, job: _Job) -> None:
        """Never raises: a failed save is told, and training goes on."""
        try:
            self._write_part(job)
            if self._rank == 0:
                self._commit(job)
        except Exception as error:
            self._tell_failure(job, error)
            self._give_up(job, error)
            job.failure = error
        finally:
            job.staged = None
            job.written.set()

    def _write_part(self, job: _Job) -> None:
        aside = job.save.aside
        if job.staged is None:
            raise NotDurableError(job.save.target, "nothing was staged")
        try:
            aside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(aside, error) from error
        shard_file, record, items = write_shards(aside, self._rank, job.staged)
        files = {shard_file: record}
        if job.reference is not None:
            name, part = write_reference_part(aside, self._rank, job.reference)
            files[name] = part
        report = ShardReport(
            rank=self._rank,
            files=files,
            shard_file=shard_file,
            items=items,
            paths=job.staged.paths,
            progress=job.progress,
        )
        report.write(aside)
        job.staged = None
        job.written.set()
        if job.save.tombstone.exists():  # given up while this rank was still writing: nobody else would clear this away
            shutil.rmtree(aside, ignore_errors=True)

    def _commit(self, job: _Job) -> None:
        ref = commit(job.save, timeout_s=self._commit_timeout_s)
        seconds = (time.monotonic_ns() - job.started_ns) / 1e9
        self._recorder.point(
            Point.CHECKPOINT_DURABLE,
            step=ref.step,
            cursor=ref.cursor,
            bytes=ref.manifest().bytes,
            kind=job.save.kind,
            seconds=round(seconds, 3),
        )
        if job.save.kind is CheckpointKind.STEP:
            pruned = prune(self._run_folder.checkpoints_dir, committed=ref.step, keep=self._keep)
            if pruned.steps or pruned.failures:
                self._recorder.point("checkpoint_pruned", steps=list(pruned.steps), failures=list(pruned.failures))

    def _give_up(self, job: _Job, error: Exception) -> None:
        """Rank 0 ends the save, which the others see; another rank tells rank 0. Else deadlines do it."""
        with contextlib.suppress(CheckpointError, OSError):
            if self._rank == 0:
                give_up(job.save, str(error))
            else:
                report_failure(job.save.aside, self._rank, str(error))

    def _tell_failure(self, job: _Job, error: Exception) -> None:
        self._recorder.point("checkpoint_failed", step=job.save.step, kind=job.save.kind, message=str(error)[:2000])

    def _sweep(self) -> None:
        failures = sweep(self._run_folder.checkpoints_dir, prefix="step-", own=self._incarnation)
        failures += sweep(self._run_folder.root, prefix="anchor.", own=self._incarnation)
        if failures:
            self._recorder.point("checkpoint_pruned", steps=[], failures=failures)
