"""How an attempt ends: completed with an anchor, or saved before a preemption; the devices are let go at once."""

from __future__ import annotations

from ett_reports.events import Phase
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt
from trainer.checkpoint import CheckpointError, CheckpointRef
from trainer.dpp.batch import sparse_keys
from trainer.evaluation import evaluate_holdout
from trainer.preemption import PreemptionFlag
from trainer.run_folder import RunFolder
from trainer.spec import RunSpec
from trainer.startup import Startup


def already_anchored(run_folder: RunFolder, spec: RunSpec) -> CheckpointRef | None:
    """This run's anchor, if an earlier attempt has committed it: then there is nothing left to do."""
    try:
        anchor = CheckpointRef.open(run_folder.anchor_dir)
    except CheckpointError:
        return None
    return anchor if anchor.manifest().lineage.run == spec.run.run else None


def complete(startup: Startup, attempt: Attempt, recorder: Recorder) -> None:
    """Evaluate on the holdout, hand the anchor over (paper IV-D), let go. Collective.

    Raises:
        CheckpointError: the anchor, or the last save before it, is not durable: the run has not succeeded.
    """
    position = startup.position
    with recorder.span(Phase.EVALUATION, rows=startup.plan.holdout_rows):
        evaluation = evaluate_holdout(
            startup.trainee,
            startup.plan,
            startup.spec.contract,
            keys=sparse_keys(startup.spec),
            place=attempt.place,
            device=startup.device,
            control=startup.groups.control,
            recorder=recorder,
        )
    leads = attempt.place.rank == 0
    if leads:
        recorder.point("metrics", scope="holdout", cursor=position.cursor, **evaluation.quality.as_attrs())
    startup.saver.save_anchor(position, evaluation.reference)
    let_go(startup, recorder)
    if leads:
        recorder.point("completed", cursor=position.cursor)


def save_and_leave(startup: Startup, preemption: PreemptionFlag, recorder: Recorder) -> None:
    """Make the progress since the last resume durable, then let go. Collective.

    Raises:
        CheckpointError: the save is not durable in time; what was saved before it stands.
    """
    if preemption.noticed_ns is not None:
        recorder.point("preemption_notice", wall_ns=preemption.noticed_ns)
    if startup.has_progressed:
        startup.saver.save_before_exit(startup.position)
    let_go(startup, recorder)


def let_go(startup: Startup, recorder: Recorder) -> None:
    """Wait for the last save and release what this rank holds."""
    with recorder.span(Phase.TEARDOWN):
        startup.reader.close()
        startup.saver.checkpointer.close()
        startup.release()
