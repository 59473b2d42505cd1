"""The checkpointer: stages on the loop's thread, writes and commits in the background (paper IV-C a)."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
import torch.distributed as dist

from ett_reports.events import Phase, Point
from ett_reports.recorder import Recorder
from trainer.checkpoint.commit import Save, await_commit, commit, discard, give_up, was_given_up
from trainer.checkpoint.durable import make_folder
from trainer.checkpoint.errors import CheckpointError, NotDurableError
from trainer.checkpoint.manifest import CheckpointKind, CheckpointRef, Lineage, SaveId, StepFolder
from trainer.checkpoint.outlook import Durable, Outlook
from trainer.checkpoint.peers import Peers
from trainer.checkpoint.progress import Progress
from trainer.checkpoint.reference import write_reference
from trainer.checkpoint.restore import Restored, restore_newest
from trainer.checkpoint.retention import Pruned, clear_away, sweep
from trainer.checkpoint.shards import ShardReport, report_failure, write_shards
from trainer.checkpoint.staging import StagedState, Stager, Staging, State
from trainer.storage import CheckpointPlace

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 600.0


class CheckpointMode(StrEnum):
    """SYNC blocks the loop until the commit; ASYNC until the state is copied."""

    SYNC = "sync"
    ASYNC = "async"


@dataclass
class _Job:
    """One save on its way through the writer thread. `staged` is let go once it is `written`; `told` is set when the
    save is over, one way or the other.
    """

    save: Save
    staged: StagedState | None
    progress: Progress
    reference: pa.Table | None
    failure: Exception | None = None
    written: threading.Event = field(default_factory=threading.Event)
    told: threading.Event = field(default_factory=threading.Event)


class Checkpointer:
    """Saves a job's state; make one on every rank, after the process group is up (one broadcast, the only collective
    but for `restore_newest`).

    A save that fails is never selectable. It does not stop training by itself: it is told by the point
    `checkpoint_failed` and by `failure`, and the next one tries again. Only `save_before_exit`, `save_anchor`, `wait`
    and `close` insist, and raise.

    Args:
        lineage: which run this is; goes into every manifest.
        keep: how many committed checkpoints stay.
        commit_timeout_s: how long one save may take, on whichever rank, before it is given up.
    """

    def __init__(
        self,
        place: CheckpointPlace,
        *,
        lineage: Lineage,
        recorder: Recorder,
        keep: int,
        mode: CheckpointMode,
        process_group: dist.ProcessGroup | None = None,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        self._place = place
        self._lineage = lineage
        self._recorder = recorder
        self._keep = keep
        self._mode = mode
        self._group = process_group
        self._commit_timeout_s = commit_timeout_s
        peers = Peers.of(process_group)
        self._rank, self._world_size = peers.rank, peers.world_size
        if self._rank == 0:
            self._tell_pruned(sweep(place))  # before the others can write
        # The same on every rank and in no other attempt, so that parts of two attempts are never mixed.
        self._incarnation = peers.from_first(SaveId.new_incarnation())
        self._stager = Stager(self._rank)
        self._saves = 0
        self._last: _Job | None = None
        self._restored: Restored | None = None
        self._failure: CheckpointError | None = None
        self._outlook = Outlook()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- what the loop may ask at every step: nothing here waits --------------------------------------------------

    @property
    def failure(self) -> CheckpointError | None:
        """Why the latest save that failed did, as far as this rank knows: each its own part, rank 0 the commit too.

        It stays when later saves succeed, so that no failure can slip by between two looks; another one is another
        object.
        """
        return self._failure

    @property
    def last_durable(self) -> Durable | None:
        """What a resume would find now: the newest commit, else what this attempt was restored from. On rank 0."""
        return self._outlook.last_durable

    @property
    def estimated_save_s(self) -> float | None:
        """Seconds until a save that starts now would be durable, as far as saves have been measured. On rank 0."""
        last = self._last
        unfinished = last is not None and not last.told.is_set()
        return self._outlook.estimated_save_s(unfinished_since_s=last.save.seconds if last and unfinished else None)

    @property
    def busy(self) -> bool:
        """Whether the previous save still holds this rank's buffers, so that a save now would wait."""
        return self._last is not None and not self._last.written.is_set()

    def restore_newest(self, state: State) -> Restored | None:
        """Load the run's newest intact checkpoint; it stays until this attempt has committed a newer one. Collective.

        Raises:
            As `trainer.checkpoint.restore_newest`.
        """
        found = restore_newest(self._place, state, recorder=self._recorder, process_group=self._group)
        self._restored = found
        if found is not None and self._rank == 0:
            self._outlook.restored(found)
        return found

    def preallocate(self, state: State) -> None:
        """Allocate and fill the buffers ahead of the first save, which otherwise takes about three times as long."""
        if self._mode is CheckpointMode.ASYNC:
            self._stager.stage(state, Staging.COPY)

    def save(self, step: int, state: State, progress: Progress) -> None:
        """Save at the same step on every rank. Blocks as the mode says; values are those of this moment (case C5)."""
        with self._recorder.span(Phase.CHECKPOINT_BLOCKING, step=step):
            job = self._job(CheckpointKind.STEP, step, progress, None)
            if self._mode is CheckpointMode.ASYNC:
                self._dispatch(job, state, timeout_s=self._commit_timeout_s)
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
        self, step: int, state: State, progress: Progress, reference: pa.Table, *, timeout_s: float | None = None
    ) -> CheckpointRef:
        """Save what the run hands over (paper IV-D), with this rank's predictions on the holdout (`reference_table`).
        It waits for `timeout_s`, or else as long as a commit may take.

        Raises:
            CheckpointError: it is not durable in time (case C4); the run has not succeeded. Should it become durable
                later, the next attempt finds it.
        """
        with self._recorder.span(Phase.FINAL_CHECKPOINT, step=step):
            return self._insist(self._job(CheckpointKind.ANCHOR, step, progress, reference), state, timeout_s)

    def wait(self, *, timeout_s: float | None = None) -> None:
        """Wait until the last save is durable over all ranks, for `timeout_s`, or else as long as a commit may take.

        Raises:
            CheckpointError: it is not, and will not be or was not in time.
        """
        if self._last is not None:
            self._await(self._last, self._commit_timeout_s if timeout_s is None else timeout_s)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Wait for the last save, as `wait` does, and stop the thread.

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
                thread.join(self._commit_timeout_s if timeout_s is None else timeout_s)

    # -- on the loop's thread -----------------------------------------------------------------------------------

    def _job(self, kind: CheckpointKind, step: int, progress: Progress, reference: pa.Table | None) -> _Job:
        started_ns = time.monotonic_ns()
        self._saves += 1
        save_id = SaveId(self._incarnation, self._saves)
        anchored = kind is CheckpointKind.ANCHOR
        save = Save(
            kind=kind,
            step=step,
            folder=self._place.anchor if anchored else self._place.checkpoints / str(StepFolder(step, save_id)),
            save_id=save_id,
            world_size=self._world_size,
            lineage=self._lineage,
            started_ns=started_ns,
        )
        return _Job(save, None, progress, reference)

    def _dispatch(self, job: _Job, state: State, *, timeout_s: float) -> None:
        if self._last is not None and not self._last.written.wait(timeout_s):
            detail = "the save before it still holds the buffers; is the storage stuck?"
            job.failure = NotDurableError(job.save.folder, detail)
            self._tell_failure(job, job.failure)
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

    def _insist(self, job: _Job, state: State, timeout_s: float | None) -> CheckpointRef:
        limit_s = self._commit_timeout_s if timeout_s is None else timeout_s
        self._dispatch(job, state, timeout_s=limit_s)
        return self._await(job, limit_s - job.save.seconds)

    def _await(self, job: _Job, timeout_s: float) -> CheckpointRef:
        ref = await_commit(job.save, failure=lambda: job.failure, timeout_s=timeout_s)
        if self._rank == 0:
            job.told.wait(max(0.0, timeout_s))  # the manifest is seen a moment before the thread that wrote it says so
        return ref

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
            job.told.set()

    def _write_part(self, job: _Job) -> None:
        save = job.save
        if job.staged is None:
            raise NotDurableError(save.folder, "nothing was staged")
        job.staged.refuse_nan(save.folder)
        make_folder(save.folder)
        shard = save.shard(self._rank)
        record, items = write_shards(shard, job.staged)
        files = {shard.name: record}
        if job.reference is not None:
            part = save.reference(self._rank)
            files[part.name] = write_reference(part, job.reference)
        ShardReport(
            rank=self._rank,
            files=files,
            shard_file=shard.name,
            items=items,
            paths=job.staged.paths,
            progress=job.progress,
        ).write(save.report(self._rank))
        job.staged = None
        job.written.set()
        if was_given_up(save):  # while this rank was still writing: nobody else would clear this away
            discard(save)

    def _commit(self, job: _Job) -> None:
        save = job.save
        ref, size = commit(save, timeout_s=self._commit_timeout_s)
        seconds = save.seconds
        self._outlook.committed(ref, seconds=seconds)
        self._recorder.point(
            Point.CHECKPOINT_DURABLE,
            step=ref.step,
            cursor=ref.cursor,
            bytes=size,
            kind=save.kind,
            seconds=round(seconds, 3),
        )
        job.told.set()
        restored = self._restored
        pruned = clear_away(
            self._place,
            save,
            committed=ref,
            keep=self._keep,
            restored=restored.ref if restored else None,
            rejected=restored.rejected if restored else (),
        )
        self._tell_pruned(pruned)

    def _give_up(self, job: _Job, error: Exception) -> None:
        """Rank 0 ends the save, which the others see; another rank tells rank 0. Else deadlines do it."""
        with contextlib.suppress(CheckpointError, OSError):
            if self._rank == 0:
                give_up(job.save, str(error))
            else:
                report_failure(job.save.failure(self._rank), str(error), shard=job.save.shard(self._rank))

    def _tell_failure(self, job: _Job, error: Exception) -> None:
        told = error if isinstance(error, CheckpointError) else NotDurableError(job.save.folder, str(error))
        if told is not error:
            told.__cause__ = error
        self._failure = told
        log.warning("the save of step %d failed: %s", job.save.step, error)
        self._recorder.point("checkpoint_failed", step=job.save.step, kind=job.save.kind, message=str(error)[:2000])

    def _tell_pruned(self, pruned: Pruned) -> None:
        for failure in pruned.failures:
            log.warning("could not be deleted: %s", failure)
        if pruned.steps or pruned.failures:
            self._recorder.point("checkpoint_pruned", steps=list(pruned.steps), failures=list(pruned.failures))
