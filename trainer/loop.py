"""The training loop: one step at a time on all ranks, with an exact cursor, saves by the clock, and an orderly stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum

import torch
import torch.distributed as dist

from ett_reports.events import Phase
from ett_reports.recorder import Recorder
from trainer.compile.watch import CompileWatch
from trainer.dpp.batch import to_tensors
from trainer.dpp.decode import HostBatch
from trainer.dpp.errors import DppError
from trainer.loss_watch import LossWatch, NonFiniteLossError
from trainer.metrics import quality_of
from trainer.model.trainee import Trainee
from trainer.padding import padded
from trainer.preemption import PreemptionFlag
from trainer.progress import Position, ProgressiveQuality
from trainer.random_states import GeneratorStart
from trainer.ranks import StepAgreement, StepFacts, agree, first_of_all, shared_data_failure
from trainer.saving import BackgroundSaveError, ProgressSaver
from trainer.watchdog import Watchdog

log = logging.getLogger(__name__)

METRICS_INTERVAL_S = 5.0


class LoopEnd(StrEnum):
    """Why the loop ended."""

    FINISHED = "finished"
    PREEMPTED = "preempted"


class TrainingLoop:
    """Trains on every batch of `batches`, in step with the other ranks, padded to `smallest_batch` rows at least."""

    def __init__(
        self,
        *,
        trainee: Trainee,
        batches: Iterator[HostBatch],
        steps: int,
        smallest_batch: int,
        keys: Sequence[str],
        device: torch.device,
        rank: int,
        control: dist.ProcessGroup,
        position: Position,
        quality: ProgressiveQuality,
        saver: ProgressSaver,
        save_interval_s: float,
        preemption: PreemptionFlag,
        recorder: Recorder,
        watch: CompileWatch,
        losses: LossWatch,
        generators: GeneratorStart,
        watchdog: Watchdog,
    ) -> None:
        self._trainee, self._batches, self._steps = trainee, batches, steps
        self._smallest_batch = smallest_batch
        self._keys, self._device, self._control = keys, device, control
        self._leads = rank == 0
        self._position, self._quality = position, quality
        self._saver, self._save_interval_s = saver, save_interval_s
        self._preemption, self._recorder, self._watch = preemption, recorder, watch
        self._losses, self._generators, self._watchdog = losses, generators, watchdog
        self._save_due_at = self._report_due_at = 0.0

    def run(self) -> LoopEnd:
        """Take the steps that are left, or stop before one when any rank is warned of a preemption. Collective.

        Raises:
            DppError: a rank's data failed; every rank raises, the others PeerDataError.
            NonFiniteLossError: a rank's loss was NaN or infinite, at most one step ago; every rank raises.
            BackgroundSaveError: a save failed and the spec wants the job to end by that; every rank raises.
        """
        self._generators.apply()
        now = time.monotonic()
        self._save_due_at, self._report_due_at = now + self._save_interval_s, now + METRICS_INTERVAL_S
        self._watch.enter_loop()
        self._recorder.begin_steps(cursor=self._position.cursor)
        for _ in range(self._steps):
            waiting_since = time.monotonic_ns()
            batch, failure = self._next_batch()
            data_wait_ns = time.monotonic_ns() - waiting_since
            facts = agree(self._facts(batch), self._control)
            self._raise_failures(facts, failure)
            if facts.preempted:
                self._check_losses()
                return LoopEnd.PREEMPTED
            if facts.save_due and not facts.saver_busy:  # else as soon as every rank's last save lets go of its buffers
                self._save()
            if facts.report_due:
                self.report()
            assert batch is not None  # a rank without a batch has raised above
            self._train(batch, facts)
            self._recorder.step(cursor=self._position.cursor, data_wait_ns=data_wait_ns)
            self._watchdog.stepped()
        self._check_losses()
        self.report()
        return LoopEnd.FINISHED

    def report(self) -> None:
        """Record quality since the last report, and over the run. Collective."""
        sums = self._quality.settle()
        dist.all_reduce(sums, group=self._control)
        self._report_due_at = time.monotonic() + METRICS_INTERVAL_S
        if not self._leads:
            return
        for scope, vector in (("train", sums[0]), ("progressive", sums[1])):
            quality = quality_of(vector)
            self._recorder.point("metrics", scope=scope, cursor=self._position.cursor, **quality.as_attrs())
            log.info("sample %d, %s: %s", self._position.cursor, scope, quality)

    def _train(self, host: HostBatch, facts: StepAgreement) -> None:
        rows = max(facts.largest, self._smallest_batch)
        batch = to_tensors(padded(host, rows, keys=len(self._keys)), self._keys, self._device)
        trained = self._trainee.step(batch)
        self._quality.add(trained.logits, batch.labels)
        self._position.step += 1
        self._losses.add(trained.loss, step=self._position.step, rows=host.consumed)
        self._position.cursor += facts.rows
        self._position.remaining = host.remaining

    def _save(self) -> None:
        self._check_losses()  # what is not finite must not be saved
        self._watchdog.entered(Phase.CHECKPOINT_BLOCKING, self._saver.patience_s)
        self._saver.save(self._position)
        self._save_due_at = time.monotonic() + self._save_interval_s

    def _raise_failures(self, facts: StepAgreement, data_failure: DppError | None) -> None:
        """Raise on every rank what any rank has met, so that all stop at this step and every error says why."""
        if facts.not_finite:
            self._check_losses()
        if facts.data_failed:
            raise shared_data_failure(data_failure, self._control)
        if facts.save_failed:
            failure = self._saver.fatal_failure()
            found = first_of_all(str(failure) if failure else None, self._control)
            raise BackgroundSaveError("rank {}: {}".format(*found or ("?", "a save failed"))) from failure

    def _check_losses(self) -> None:
        """Raise on every rank if any rank's loss was not finite, the steps still running included. Collective."""
        if found := first_of_all(self._losses.settled(), self._control):
            raise NonFiniteLossError(found[1])

    def _next_batch(self) -> tuple[HostBatch | None, DppError | None]:
        try:
            return next(self._batches), None
        except DppError as error:
            log.error("%s", error)
            return None, error

    def _facts(self, batch: HostBatch | None) -> StepFacts:
        """Rank 0's clock decides what is due, so that all ranks do it at the same step."""
        now = time.monotonic()
        return StepFacts(
            rows=batch.rows if batch else 0,
            preempted=int(self._preemption.raised),
            data_failed=int(batch is None),
            not_finite=int(self._losses.so_far() is not None),
            save_failed=int(self._saver.fatal_failure() is not None),
            save_due=int(self._leads and now >= self._save_due_at),
            saver_busy=int(self._saver.busy),
            report_due=int(self._leads and now >= self._report_due_at),
        )
