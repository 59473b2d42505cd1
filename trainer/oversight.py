"""What watches one rank from beside its main thread: the watchdog, and on rank 0 the stage file."""

from __future__ import annotations

from collections.abc import Callable

from ett_reports.events import Phase
from ett_reports.recorder import Recorder
from trainer.attempt import Attempt
from trainer.hurried_exit import HurriedExit
from trainer.preempted_marker import PreemptedMarker
from trainer.spec import Resources
from trainer.stage_file import StageFile, Standing
from trainer.watchdog import HangLimits, Watchdog


class Oversight:
    """Threads that begin with the attempt, learn of its progress once there is some, and end with it."""

    def __init__(self, attempt: Attempt, resources: Resources, hurried: HurriedExit, recorder: Recorder) -> None:
        self._hurried = hurried
        self.watchdog = Watchdog(HangLimits.of(resources), on_hang=hurried.hung, alive=recorder.heartbeat)
        self._stage_file: StageFile | None = None
        if attempt.leads:
            self._stage_file = StageFile(
                attempt.run_folder, attempt.number, phase=self._phase, superseded=hurried.superseded
            )
            PreemptedMarker.remove(attempt.run_folder)

    def begin(self) -> None:
        """Watch startup."""
        self.watchdog.start()
        if self._stage_file is not None:
            self._stage_file.start()

    def follow(self, standing: Callable[[], Standing]) -> None:
        """Startup is over: watch steps, and tell how far they have led."""
        self._hurried.follow(standing)
        if self._stage_file is not None:
            self._stage_file.follow(standing)
        self.watchdog.entered(Phase.STEP)

    def end(self) -> None:
        """The attempt has ended as it should."""
        self.watchdog.stop()
        if self._stage_file is not None:
            self._stage_file.close()

    def _phase(self) -> Phase:
        return self.watchdog.phase
