"""The watchdog of one rank: notices that a stage or a step does not end, so that a hang costs minutes, not a night."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ett_reports.events import Phase
from trainer.spec import Resources

STEPS_REMEMBERED = 256
LONGEST_LOOK_S = 1.0
STOPPED_S = 2.0
"""A look that comes so much too late: this thread did not run in between."""
_LOOKS_PER_LIMIT = 10


@dataclass(frozen=True, kw_only=True)
class HangLimits:
    """How long a rank may make no progress before it is hung.

    Attributes:
        stage_s: seconds for one stage of startup or shutdown, unless the stage itself asks for more.
        factor: a step may take so many times the median of the steps before it,
        floor_s: and never counts as hung before so many seconds.
    """

    stage_s: float
    factor: float
    floor_s: float

    @classmethod
    def of(cls, resources: Resources) -> HangLimits:
        """As the spec says."""
        return cls(stage_s=resources.hang_timeout_s, factor=resources.hang_factor, floor_s=resources.hang_floor_s)

    def for_stage(self, silence_s: float) -> float:
        """Seconds for a stage that asks for `silence_s` without a sign of life."""
        return max(self.stage_s, silence_s)

    def for_step(self, steps_s: Sequence[float]) -> float:
        """Seconds for the step after steps that took `steps_s`; the first one is measured as a stage.

        >>> limits = HangLimits(stage_s=300.0, factor=10.0, floor_s=2.0)
        >>> limits.for_step([]), limits.for_step([0.01, 0.01, 9.0]), limits.for_step([1.0])
        (300.0, 2.0, 10.0)
        """
        return max(self.floor_s, self.factor * statistics.median(steps_s)) if steps_s else self.stage_s

    @property
    def look_every_s(self) -> float:
        """Seconds between two looks, so that a hang is found soon after its limit."""
        return min(LONGEST_LOOK_S, min(self.stage_s, self.floor_s) / _LOOKS_PER_LIMIT)


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No progress in `phase` for `silent_s` seconds, where `limit_s` are allowed."""

    phase: Phase
    silent_s: float
    limit_s: float

    def __str__(self) -> str:
        what = "no step" if self.phase is Phase.STEP else f"no end of {self.phase}"
        return f"{what} for {self.silent_s:.1f} s, where {self.limit_s:.1f} s are allowed"


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """What a thread of the rank is doing, since when (monotonic seconds), and how long it asked to be left alone."""

    phase: Phase
    since: float
    silence_s: float = 0.0


class Watchdog:
    """Told by the rank's own threads where they are; looks from a thread of its own how long they have been there.

    While a phase may last longer than `stage_s`, the watchdog gives signs of life on the rank's behalf: to the
    launcher, which knows `stage_s` alone, silence means that not even this thread runs. A stretch in which this thread
    did not run (the process was stopped, or the interpreter's lock held) is not counted: the launcher judges that.

    Args:
        on_hang: called once, on the watchdog's thread; the process is expected to end in it.
        alive: a sign of life to whoever follows the rank.
    """

    def __init__(self, limits: HangLimits, *, on_hang: Callable[[Hang], None], alive: Callable[[], None]) -> None:
        self._limits, self._on_hang, self._alive = limits, on_hang, alive
        self._watched = _Watched(Phase.LAUNCHER_INIT, time.monotonic())
        self._beside: tuple[_Watched, ...] = ()
        self._changing = threading.Lock()
        self._steps_s: list[float] = []
        self._next = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer. Calling it twice is fine."""
        self._stopped.set()

    @property
    def phase(self) -> Phase:
        """Where the rank is; `Phase.STEP` in the loop; of stages that run together the one that began first."""
        beside = self._beside
        return beside[0].phase if beside else self._watched.phase

    def entered(self, phase: Phase, silence_s: float = 0.0) -> None:
        """A phase begins that may show no progress for `silence_s` seconds, or a stage's limit if that is longer."""
        self._watched = _Watched(phase, time.monotonic(), silence_s)

    @contextmanager
    def watching(self, phase: Phase, silence_s: float = 0.0) -> Iterator[None]:
        """A stage that runs beside others, each with its own limit; any thread may call this.

        While there are such stages, and for as long after the last of them as a stage may take, the rank is not asked
        for other signs of progress.
        """
        watched = _Watched(phase, time.monotonic(), silence_s)
        with self._changing:
            self._beside = (*self._beside, watched)
        try:
            yield
        finally:
            with self._changing:
                self._beside = tuple(other for other in self._beside if other is not watched)
                self._watched = _Watched(phase, time.monotonic())

    def stepped(self) -> None:
        """A step has ended, and the next one begins. Costs a microsecond.

        A step in which another phase was entered, such as a checkpoint, says nothing about the others.
        """
        now, watched = time.monotonic(), self._watched
        if watched.phase is Phase.STEP:
            self._remember(now - watched.since)
        self._watched = _Watched(Phase.STEP, now)

    def _remember(self, seconds: float) -> None:
        if len(self._steps_s) < STEPS_REMEMBERED:
            self._steps_s.append(seconds)
        else:
            self._steps_s[self._next] = seconds
            self._next = (self._next + 1) % STEPS_REMEMBERED

    # -- on the watchdog's thread -------------------------------------------------------------------------------

    def _watch(self) -> None:
        every = self._limits.look_every_s
        looked = time.monotonic()
        not_counted: dict[_Watched, float] = {}
        while not self._stopped.wait(every):
            all_watched, now = self._beside or (self._watched,), time.monotonic()
            not_counted = {watched: not_counted.get(watched, 0.0) for watched in all_watched}
            if now - looked > every + STOPPED_S:
                for watched in all_watched:
                    not_counted[watched] += min(now - looked, now - watched.since)
            looked = now
            for watched in all_watched:
                silent_s, limit_s = now - watched.since - not_counted[watched], self._limit(watched)
                if silent_s >= limit_s and self._is_still(watched):
                    self._on_hang(Hang(phase=watched.phase, silent_s=silent_s, limit_s=limit_s))
                    return
            if max(self._limit(watched) for watched in all_watched) > self._limits.stage_s:
                self._alive()

    def _is_still(self, watched: _Watched) -> bool:
        beside = self._beside
        return watched in beside if beside else watched is self._watched

    def _limit(self, watched: _Watched) -> float:
        if watched.phase is Phase.STEP:
            return self._limits.for_step(list(self._steps_s))
        return self._limits.for_stage(watched.silence_s)
