"""The answer that a report opens on: what cost the most, whose it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from ett_reports.events import L1, Component, Phase
from ett_reports.report import JobReport
from ett_reports.slo import Judgement, Owned, Owner

WHAT_TO_DO: dict[Phase, str] = {
    Phase.QUEUE_WAIT: "The job stood in the scheduler's queue. "
    "Reserve capacity for its hour, or start it when the queue is short.",
    Phase.RETRY_WAIT: "Time passed between a failed attempt and the next submission. "
    "Shorten the retry delay for this cause.",
    Phase.HARDWARE_SETUP: "Devices were held before the launcher's process ran. "
    "Keep images on the nodes and mounts warm.",
    Phase.LAUNCHER_INIT: "Imports and rendezvous came before the trainer's first line. "
    "Import less there, and keep a warm standby.",
    Phase.DEVICE_INIT: "Device set-up was on the critical path. Start it beside the preprocessing warm-up.",
    Phase.PROCESS_GROUP: "Ranks waited for each other to join. "
    "See the stragglers for the last one, and create fewer groups.",
    Phase.PREPROCESSING: "The data pipeline's warm-up was on the critical path. "
    "Overlap it with compilation on a synthetic fast batch.",
    Phase.TRAIN_MODULE: "Model creation was on the critical path. "
    "Reuse the sharding plan, and build shard metadata locally.",
    Phase.PLUGIN_INIT: "Plugins held up the start. Start those that the first step does not need in the background.",
    Phase.PRE_TRAIN_SETUP: "Set-up before the first step was on the critical path. "
    "Move what the first step does not need behind it.",
    Phase.CHECKPOINT_RESTORE: "Reading the checkpoint held up the restart. "
    "Read it in parallel, and start it before the model is compiled.",
    Phase.FIRST_BATCH: "The first batch came late. Warm the data pipeline up beside compilation.",
    Phase.COMPILE: "Compilation was on the critical path. "
    "A new model pays it once if the compile cache is on, every attempt if it is off; "
    "mark dimensions that vary as dynamic.",
    Phase.RECOMPILE: "Graphs were compiled again inside the loop. Mark the dimensions that vary as dynamic.",
    Phase.REPLAY: "Samples were trained twice after a failure. "
    "Save more often: `python -m ett_reports interval` gives the best interval.",
    Phase.LOST_STEP: "Steps were cut short by failures. Fewer failures or shorter steps are the only remedy.",
    Phase.CHECKPOINT_BLOCKING: "Saves blocked the loop. "
    "Save asynchronously, or less often: `python -m ett_reports interval` says how often.",
    Phase.DATA_STALL: "The loop waited for data. "
    "Give the reader more prefetch or more workers, or look at its storage.",
    Phase.EVALUATION: "Evaluation ran inside the loop. Evaluate less often, or in a job of its own.",
    Phase.HANG: "Failures were noticed late. Shorten the hang timeout, and let ranks report their own end.",
    Phase.FINAL_CHECKPOINT: "Devices were held while the last checkpoint was written. "
    "Speed up its storage, or write fewer bytes.",
    Phase.IN_TRAINER_PUBLISH: "Devices were held while the model was published. "
    "Publish from the anchor checkpoint, in a job without devices.",
    Phase.TEARDOWN: "Processes were slow to end. Close the readers first, and kill what is left after a short grace.",
    Phase.UNATTRIBUTED: "No source explains this time. Record spans where it passes; the timeline shows where.",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The costliest component, its costliest leaf, its owner, and the next thing to do. Durations in ns.

    component is None when nothing was lost; recovery_ns is the part of its time spent in recoveries from failures.
    """

    component: Component | None
    cost_ns: int
    leaf: Phase | None
    leaf_ns: int
    recovery_ns: int
    owner: Owner | None
    action: str


def answer(job: JobReport, judgement: Judgement) -> Answer:
    """What a reader who has ten seconds must know. Ties go to the earlier component of Table II."""
    lost = {part: spent for part, spent in job.l2.items() if part is not Component.EFFECTIVE_TRAINING and spent > 0}
    if not lost:
        return Answer(
            component=None, cost_ns=0, leaf=None, leaf_ns=0, recovery_ns=0, owner=None, action="Nothing was lost."
        )
    component = max(lost, key=lambda part: lost[part])
    leaves = [total for total in job.phases if total.component is component]
    leaf = max(leaves, key=lambda total: total.exposed_ns, default=None)
    phase = Phase.UNATTRIBUTED if leaf is None else leaf.phase
    recovery = job.cross.get(L1.RECOVERY, {}).get(component, 0)
    return Answer(
        component=component,
        cost_ns=lost[component],
        leaf=phase,
        leaf_ns=lost[component] if leaf is None else leaf.exposed_ns,
        recovery_ns=recovery,
        owner=judgement.verdict(Owned(component.value)).owner,
        action=WHAT_TO_DO[phase],
    )
