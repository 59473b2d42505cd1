"""One rank of one attempt as the launcher started it: its run folder, its place, its log, and how it explains its end.

Imports no torch, so that the event log is open before the slow imports begin.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ett_reports.events import Cause, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.atomic_file import replace_text
from trainer.run_folder import RunFolder
from trainer.stage_file import read as read_stage


class RankError(Exception):
    """The ranks cannot be set up; says which environment variable or device is at fault."""


class SupersededError(Exception):
    """A newer attempt of the run has begun: a process of this one must neither start nor go on."""

    def __init__(self, number: int, newer: int) -> None:
        super().__init__(
            f"attempt {number} of this run is over: attempt {newer} has begun; "
            f"to start another by hand once that has ended, set ETT_ATTEMPT={newer + 1}"
        )
        self.number, self.newer = number, newer


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Place of this process in the job, as the launcher told it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. Left out: a lone process, or all ranks on one host.

        Raises:
            RankError: a value that is not a number, or a rank outside the world.
        """
        rank = _number(environment, "RANK", "0")
        world_size = _number(environment, "WORLD_SIZE", "1")
        place = cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(environment, "LOCAL_RANK", str(rank)),
            local_world_size=_number(environment, "LOCAL_WORLD_SIZE", str(world_size)),
        )
        if not place.rank < place.world_size:
            raise RankError(f"$RANK is {place.rank} in a world of {place.world_size} ranks; ranks count from 0")
        return place

    @property
    def threads(self) -> int:
        """This rank's share of the host's cores."""
        return max(1, len(os.sched_getaffinity(0)) // self.local_world_size)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One rank of one attempt. `local_folder` is on this node, and of this job alone.

    `grace_s`: seconds between a warning (SIGTERM) and the end, as the launcher promises them.
    """

    run_folder: RunFolder
    number: int
    place: Rank
    events_folder: Path
    local_folder: Path
    error_file: Path | None
    grace_s: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Attempt:
        """What the launcher's variables say; without a launcher, attempt 1 with its local files in the run folder.

        Raises:
            RankError, RunFolderError: a variable that is missing or wrong.
        """
        run_folder = RunFolder.from_environment()
        error_file = environment.get("ETT_ERROR_FILE")
        return cls(
            run_folder=run_folder,
            number=_number(environment, "ETT_ATTEMPT", "1"),
            place=Rank.from_environment(environment),
            events_folder=Path(environment.get("ETT_EVENTS_DIR") or run_folder.events_dir),
            local_folder=Path(environment.get("ETT_JOB_DIR") or run_folder.root / "local"),
            error_file=Path(error_file) if error_file else None,
            grace_s=_seconds(environment, "ETT_GRACE_S", "30"),
        )

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes what the job says as one."""
        return self.place.rank == 0

    def check_newest(self) -> None:
        """See to it that this is not a process of an earlier attempt that comes late.

        Raises:
            SupersededError: a newer attempt of the run was there a moment ago.
        """
        found = read_stage(self.run_folder)
        if found is not None and found.attempt > self.number and found.is_alive(time.time_ns()):
            raise SupersededError(self.number, found.attempt)

    def open_log(self) -> Recorder:
        """The event log of this process."""
        identity = ProcessIdentity(
            job=self.run_folder.job,
            source=Source.TRAINER,
            process=f"trainer-a{self.number}-r{self.place.rank}",
            attempt=self.number,
            rank=self.place.rank,
            world_size=self.place.world_size,
            devices=1,
        )
        return Recorder(self.events_folder, identity)

    def limit_threads(self) -> None:
        """Give this rank its share of the cores; before torch is imported, since OpenMP reads it once."""
        os.environ.setdefault("OMP_NUM_THREADS", str(self.place.threads))

    def explain(self, error: BaseException, cause: Cause, *, trace: str | None = None) -> None:
        """Leave for people, in the launcher's error file, why this rank ended; `trace`: where, if not in `error`."""
        if self.error_file is None:
            return
        trace = ("".join(traceback.format_exception(error)) if trace is None else trace)[-20_000:]
        content = {"message": f"{type(error).__name__}: {error}", "cause": cause, "details": {"traceback": trace}}
        try:
            replace_text(self.error_file, json.dumps(content))
        except OSError:
            traceback.print_exception(error)  # the log is the next best place


def _number(environment: Mapping[str, str], name: str, default: str) -> int:
    text = environment.get(name) or default
    if not text.isdigit():
        raise RankError(f"${name} is {text!r}, not a number; the launcher sets it")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: str) -> float:
    text = environment.get(name) or default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RankError(f"${name} is {text!r}, not a positive number of seconds; the launcher sets it")
    return seconds
