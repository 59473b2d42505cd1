"""`python -m trainer`: one rank of one attempt of a training job, top to bottom."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys

from ett_reports.events import Cause, Phase
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt, SupersededError
from trainer.hurried_exit import HurriedExit
from trainer.launch.jobs import EXIT_BAD_DATA, EXIT_HUNG, EXIT_PREEMPTED
from trainer.preemption import PreemptionFlag

EXIT_FAILED = 1
_EXIT_OF = {Cause.DATA: EXIT_BAD_DATA, Cause.HANG: EXIT_HUNG}
_LOST_PEER = ("by peer", "gloo/transport", "Broken pipe")


def main() -> int:
    """Train one rank; the exit code tells the launcher the end.

    0 completed, 75 preempted, 65 bad data, 70 hung, 1 failed.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # whoever ends a hung attempt asks for the stacks first
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("trainer").setLevel(logging.INFO)  # not the root's: the libraries print pages at this level
    logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)  # warns of any topology built by hand
    preemption = PreemptionFlag.on_sigterm()
    attempt = Attempt.from_environment()
    try:
        attempt.check_newest()
    except SupersededError as error:
        logging.error("%s", error)  # and not in the event log: the run is another attempt's by now
        attempt.explain(error, Cause.INFRASTRUCTURE)
        return EXIT_FAILED
    with attempt.open_log() as recorder:
        hurried = HurriedExit(attempt, recorder)
        preemption.depart_by(hurried, grace_s=attempt.grace_s)
        try:
            return train(attempt, preemption, hurried, recorder)
        except Exception as error:
            logging.exception("rank %d of attempt %d failed", attempt.place.rank, attempt.number)
            cause = cause_of(error)
            recorder.point("failure", cause=cause, message=f"{type(error).__name__}: {error}"[:2000])
            attempt.explain(error, cause)
            return _EXIT_OF.get(cause, EXIT_FAILED)


def train(attempt: Attempt, preemption: PreemptionFlag, hurried: HurriedExit, recorder: Recorder) -> int:
    """Start up, run the loop, evaluate, write the anchor, let go of the devices; all of it watched."""
    with recorder.span(Phase.LAUNCHER_INIT):
        attempt.limit_threads()
        from trainer.oversight import Oversight
        from trainer.spec import load_run_spec

        spec = load_run_spec(attempt.run_folder.spec_path)
        oversight = Oversight(attempt, spec.refresh.resources, hurried, recorder)
        oversight.begin()
        from trainer.finish import already_anchored, complete, save_and_leave  # imports torch: seconds
        from trainer.loop import LoopEnd
        from trainer.standing import LiveStanding
        from trainer.startup import Startup

    if anchor := already_anchored(attempt.run_folder, spec):  # an earlier attempt died between its anchor and its exit
        with recorder.span(Phase.TEARDOWN):  # which is where that attempt's recovery ends
            oversight.end()
        recorder.point("completed", cursor=anchor.cursor)
        return 0
    watchdog = oversight.watchdog
    startup = Startup(attempt, spec, preemption, recorder, watchdog)
    startup.run()
    oversight.follow(LiveStanding(startup))
    preemption.settle()
    preempted = startup.loop.run() is LoopEnd.PREEMPTED
    if preempted:
        save_and_leave(startup, attempt, preemption, recorder, watchdog)
    else:
        complete(startup, attempt, recorder, watchdog)
    oversight.end()
    return EXIT_PREEMPTED if preempted else 0


def cause_of(error: Exception) -> Cause:
    """Which kind of failure `error` is: the data's, a peer's silence or death, or this program's."""
    from trainer.dpp.errors import DppError
    from trainer.stages import StageError

    if isinstance(error, StageError):
        error = error.error
    if isinstance(error, DppError):
        return Cause.DATA
    if not isinstance(error, RuntimeError):  # torch.distributed's are all of that kind
        return Cause.APPLICATION
    from torch.distributed import DistNetworkError, DistStoreError

    text = str(error)
    if "imed out" in text or "timeout" in text:
        return Cause.HANG
    lost = isinstance(error, DistNetworkError | DistStoreError) or any(sign in text for sign in _LOST_PEER)
    return Cause.INFRASTRUCTURE if lost else Cause.APPLICATION


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own shutdown would hold the devices for another second, and may wait for a peer that is dead.
    os._exit(status)
