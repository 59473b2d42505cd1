"""How an attempt ends: completed with an anchor, or saved before a preemption; the devices are let go at once."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ett_reports.events import Phase, Point
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt
from trainer.checkpoint import CheckpointError, CheckpointRef
from trainer.dpp.batch import sparse_keys
from trainer.evaluation import evaluate_holdout
from trainer.preempted_marker import PreemptedMarker
from trainer.preemption import PreemptionFlag
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec
from trainer.startup import Startup
from trainer.storage import CheckpointPlace
from trainer.watchdog import Watchdog

log = logging.getLogger(__name__)


def already_anchored(run_folder: RunFolder, spec: RunSpec) -> CheckpointRef | None:
    """This run's anchor, if an earlier attempt has committed it: then there is nothing left to do."""
    try:
        anchor = CheckpointRef.open(CheckpointPlace.of(run_folder, spec.refresh).anchor)
    except CheckpointError:
        return None
    return anchor if anchor.manifest().lineage.run == spec.run.run else None


def complete(startup: Startup, attempt: Attempt, recorder: Recorder, watchdog: Watchdog) -> None:
    """Evaluate on the holdout, hand the anchor over (paper IV-D), let go. Collective.

    Raises:
        CheckpointError: the anchor, or the last save before it, is not durable: the run has not succeeded.
    """
    position = startup.position

    def evaluating() -> None:
        """One more batch is done: that is progress, and a sign of life."""
        watchdog.entered(Phase.EVALUATION)
        recorder.heartbeat()

    watchdog.entered(Phase.EVALUATION)
    with recorder.span(Phase.EVALUATION, rows=startup.plan.holdout_rows):
        evaluation = evaluate_holdout(
            startup.trainee,
            startup.plan,
            startup.spec.contract,
            keys=sparse_keys(startup.spec),
            place=attempt.place,
            device=startup.device,
            control=startup.groups.control,
            progressed=evaluating,
        )
    if attempt.leads:
        recorder.point("metrics", scope="holdout", cursor=position.cursor, **evaluation.quality.as_attrs())
    watchdog.entered(Phase.FINAL_CHECKPOINT, startup.saver.patience_s)
    startup.saver.save_anchor(position, evaluation.reference)
    let_go(startup, recorder, watchdog)
    if attempt.leads:
        recorder.point("completed", cursor=position.cursor)


@dataclass(frozen=True, kw_only=True)
class LastSave:
    """Whether a preempted attempt saves, as all ranks see it: the time until the first rank must leave, and what a save
    takes as rank 0 has measured it. None: no rank knows.
    """

    left_s: float
    estimated_s: float | None
    noticed_unix_ns: int | None

    @classmethod
    def agreed(cls, preemption: PreemptionFlag, estimated_s: float | None, control: dist.ProcessGroup) -> LastSave:
        """Every rank's clock put together. Collective."""
        told: list[Any] = [None] * dist.get_world_size(control)
        own = (preemption.left_s, preemption.noticed_ns, estimated_s)
        dist.all_gather_object(told, own, group=control)
        left = [left_s for left_s, _, _ in told if left_s is not None]
        noticed = [noticed_ns for _, noticed_ns, _ in told if noticed_ns is not None]
        return cls(
            left_s=max(0.0, min(left, default=0.0)),
            estimated_s=told[0][2],
            noticed_unix_ns=min(noticed, default=None),
        )

    @property
    def fits(self) -> bool:
        """A save that nobody has measured is tried: it risks nothing but the time that is left."""
        return self.estimated_s is None or self.estimated_s <= self.left_s

    def __str__(self) -> str:
        return f"a save takes {self.estimated_s or 0:.1f} s and {self.left_s:.1f} s of the grace time are left"


def save_and_leave(
    startup: Startup, attempt: Attempt, preemption: PreemptionFlag, recorder: Recorder, watchdog: Watchdog
) -> None:
    """Make the progress since the last resume durable if the time left allows it, leave the marker, let go. Collective.

    A save that fails costs what it was to save and nothing else: what was committed before it stands, and the attempt
    has been preempted all the same.
    """
    last = LastSave.agreed(preemption, startup.saver.checkpointer.estimated_save_s, startup.groups.control)
    why_not = _save(startup, last, recorder, watchdog)
    if attempt.leads:
        _leave_marker(startup, attempt, last, why_not)
    try:
        let_go(startup, recorder, watchdog)
    except (CheckpointError, RuntimeError) as error:  # an earlier save failed, or a peer has left before the others
        log.warning("letting go: %s", error)


def _save(startup: Startup, last: LastSave, recorder: Recorder, watchdog: Watchdog) -> str | None:
    """Why there is no checkpoint of this very step; None if there is one."""
    if not startup.has_progressed:
        return "nothing was trained since the checkpoint that the attempt began from"
    if not last.fits:
        log.warning("leaving without a save: %s", last)
        recorder.point(
            Point.PREEMPTION_SAVE_SKIPPED,
            reason=str(last),
            estimated_s=last.estimated_s,
            left_s=round(last.left_s, 3),
            step=startup.position.step,
            cursor=startup.position.cursor,
        )
        return str(last)
    watchdog.entered(Phase.FINAL_CHECKPOINT, last.left_s)
    try:
        startup.saver.save_before_exit(startup.position, timeout_s=last.left_s)
    except CheckpointError as error:
        log.warning("the last save failed: %s", error)
        return str(error)
    return None


def _leave_marker(startup: Startup, attempt: Attempt, last: LastSave, why_not: str | None) -> None:
    marker = PreemptedMarker(
        attempt=attempt.number,
        step=startup.position.step,
        cursor=startup.position.cursor,
        saved=why_not is None,
        reason=why_not or "",
        noticed_unix_ns=last.noticed_unix_ns,
        left_unix_ns=time.time_ns(),
    )
    try:
        marker.write(attempt.run_folder)
    except OSError as error:  # the exit code says it too
        log.warning("cannot leave the marker of the preemption: %s", error)


def let_go(startup: Startup, recorder: Recorder, watchdog: Watchdog) -> None:
    """Wait for the last save and release what this rank holds."""
    watchdog.entered(Phase.TEARDOWN, startup.saver.patience_s)
    with recorder.span(Phase.TEARDOWN):
        startup.reader.close()
        startup.saver.checkpointer.close()
        startup.release()
