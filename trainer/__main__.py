"""`python -m trainer`: one rank of one attempt of a training job, top to bottom."""

from __future__ import annotations

import logging
import os
import sys

from ett_reports.events import Cause, Phase
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt
from trainer.launch.jobs import EXIT_BAD_DATA, EXIT_PREEMPTED
from trainer.preemption import PreemptionFlag

EXIT_FAILED = 1


def main() -> int:
    """Train one rank; the exit code tells the launcher the end: 0 completed, 75 preempted, 65 bad data, 1 failed."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("trainer").setLevel(logging.INFO)  # not the root's: the libraries print pages at this level
    logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)  # warns of any topology built by hand
    preemption = PreemptionFlag.on_sigterm()
    attempt = Attempt.from_environment()
    with attempt.open_log() as recorder:
        try:
            return train(attempt, preemption, recorder)
        except Exception as error:
            logging.exception("rank %d of attempt %d failed", attempt.place.rank, attempt.number)
            cause = cause_of(error)
            recorder.point("failure", cause=cause, message=f"{type(error).__name__}: {error}"[:2000])
            attempt.explain(error, cause)
            return EXIT_BAD_DATA if cause is Cause.DATA else EXIT_FAILED


def train(attempt: Attempt, preemption: PreemptionFlag, recorder: Recorder) -> int:
    """Start up, run the loop, evaluate, write the anchor, let go of the devices."""
    with recorder.span(Phase.LAUNCHER_INIT):
        attempt.limit_threads()
        from trainer.finish import already_anchored, complete, save_and_leave  # imports torch: seconds
        from trainer.loop import LoopEnd
        from trainer.spec import load_run_spec
        from trainer.stages import run_in_sequence
        from trainer.startup import Startup

        spec = load_run_spec(attempt.run_folder.spec_path)
    if anchor := already_anchored(attempt.run_folder, spec):
        recorder.point("completed", cursor=anchor.cursor)  # an earlier attempt died between its anchor and its exit
        return 0
    startup = Startup(attempt, spec, preemption, recorder)
    run_in_sequence(startup.stages(), recorder)
    if startup.loop.run() is LoopEnd.PREEMPTED:
        save_and_leave(startup, preemption, recorder)
        return EXIT_PREEMPTED
    complete(startup, attempt, recorder)
    return 0


def cause_of(error: Exception) -> Cause:
    """Which kind of failure `error` is: the data's, a peer's death, or this program's."""
    from trainer.dpp.errors import DppError

    if isinstance(error, DppError):
        return Cause.DATA
    lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in ("by peer", "gloo/transport"))
    return Cause.INFRASTRUCTURE if lost else Cause.APPLICATION


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own shutdown would hold the devices for another second, and may wait for a peer that is dead.
    os._exit(status)
