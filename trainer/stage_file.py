"""The stage file: where a running attempt stands and what its end would cost now, for schedulers and for people.

`python -m trainer.stage_file RUN_FOLDER` prints it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ett_reports.events import Phase
from trainer.run_folder import RunFolder

FILE_NAME = "stage.json"
FORMAT_VERSION = 1
EVERY_S = 1.0
ALIVE_S = 60.0
"""An attempt that has not written for so long has ended; the clocks of two hosts differ by less."""
_CLOSE_PATIENCE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a rank knows of its own progress, read while the loop runs.

    Attributes:
        cursor: samples of the planned stream that all ranks have consumed in `step` steps.
        durable_step, durable_cursor, durable_unix_ns: of the newest checkpoint to go back to; None: from the start.
        estimated_save_s: how long until durable a save would take now; None: not measured yet.
    """

    step: int
    cursor: int
    planned_samples: int
    durable_step: int | None = None
    durable_cursor: int | None = None
    durable_unix_ns: int | None = None
    estimated_save_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """One content of the file. What an attempt in startup does not know yet is None.

    Attributes:
        stage: the phase of the event log that the attempt is in; `step` in the training loop.
        seconds_since_durable: since its newest checkpoint became durable; None without one.
        samples_at_risk: samples that would be trained again if the attempt ended now without a save.
        written_unix_ns: a file that is seconds old is of an attempt that has ended, or is stopped.
    """

    attempt: int
    stage: Phase
    step: int | None = None
    cursor: int | None = None
    planned_samples: int | None = None
    durable_step: int | None = None
    durable_cursor: int | None = None
    seconds_since_durable: float | None = None
    samples_at_risk: int | None = None
    estimated_save_s: float | None = None
    written_unix_ns: int

    @classmethod
    def of(cls, attempt: int, stage: Phase, standing: Standing | None, now_unix_ns: int) -> StageReport:
        """What is to be said at `now_unix_ns`."""
        if standing is None:
            return cls(attempt=attempt, stage=stage, written_unix_ns=now_unix_ns)
        since = standing.durable_unix_ns
        return cls(
            attempt=attempt,
            stage=stage,
            step=standing.step,
            cursor=standing.cursor,
            planned_samples=standing.planned_samples,
            durable_step=standing.durable_step,
            durable_cursor=standing.durable_cursor,
            seconds_since_durable=None if since is None else round(max(0, now_unix_ns - since) / 1e9, 3),
            samples_at_risk=standing.cursor - (standing.durable_cursor or 0),
            estimated_save_s=standing.estimated_save_s,
            written_unix_ns=now_unix_ns,
        )

    def is_alive(self, now_unix_ns: int) -> bool:
        """Whether the attempt was there a moment ago."""
        return now_unix_ns - self.written_unix_ns < ALIVE_S * 1e9

    def to_json(self) -> str:
        return json.dumps({"version": FORMAT_VERSION, **asdict(self)}, indent=1)


class StageFile:
    """Writes the file once a second from a thread of its own, on rank 0; the loop never waits for it.

    A file that cannot be written is told once in the log and tried again: it informs, nothing depends on it.

    Args:
        phase: tells where the rank is.
        superseded: called once, on the file's thread, with the number of a newer attempt that has taken the file over:
            this attempt is one that its launcher lost sight of, and must not go on beside the new one.
    """

    def __init__(
        self, run_folder: RunFolder, attempt: int, *, phase: Callable[[], Phase], superseded: Callable[[int], None]
    ) -> None:
        self._path = run_folder.root / FILE_NAME
        self._run_folder, self._attempt = run_folder, attempt
        self._phase, self._superseded = phase, superseded
        self._standing: Callable[[], Standing] | None = None
        self._failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="stage-file", daemon=True)

    def start(self) -> None:
        """Write it for the first time, so that the run is this attempt's from here on; then every second."""
        for left in self._path.parent.glob(f".{FILE_NAME}.*.writing"):  # of attempts that were killed while they wrote
            left.unlink(missing_ok=True)
        self._write()
        self._thread.start()

    def follow(self, standing: Callable[[], Standing]) -> None:
        """From now on say how far training is; `standing` is called on the file's thread."""
        self._standing = standing

    def close(self) -> None:
        """Write it for the last time. Calling it twice is fine."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join(_CLOSE_PATIENCE_S)
        if not self._thread.is_alive():  # else the storage is stuck, and would hold the devices up as well
            self._write()

    def _work(self) -> None:
        while not self._stopped.wait(EVERY_S):
            found = read(self._run_folder)
            if found is not None and found.attempt > self._attempt:
                self._stopped.set()
                self._superseded(found.attempt)
                return
            self._write()

    def _write(self) -> None:
        standing = None if self._standing is None else self._standing()
        text = StageReport.of(self._attempt, self._phase(), standing, time.time_ns()).to_json()
        # Not flushed to the disk: a power cut may take a status of a second ago, and the flush would slow a save down.
        aside = self._path.with_name(f".{FILE_NAME}.{self._attempt}.writing")
        try:
            aside.write_text(text)
            aside.replace(self._path)
        except OSError as error:
            if not self._failing:
                log.warning("cannot write %s: %s", self._path, error)
            self._failing = True
        else:
            self._failing = False


def read(run_folder: RunFolder) -> StageReport | None:
    """The newest attempt's standing; None where no attempt has begun, or the file is of another version or damaged."""
    try:
        content = json.loads((run_folder.root / FILE_NAME).read_text())
        if content.pop("version") != FORMAT_VERSION:
            return None
        known = {field.name for field in fields(StageReport)}
        values = {name: value for name, value in content.items() if name in known}
        return StageReport(**{**values, "stage": Phase(values["stage"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def described(report: StageReport, now_unix_ns: int) -> str:
    """For people, a line for each fact."""
    stage = "training" if report.stage is Phase.STEP else report.stage.replace("_", " ")
    lines = [f"attempt {report.attempt}: {stage}"]
    if report.step is not None and report.cursor is not None and report.planned_samples:
        share = 100 * report.cursor / report.planned_samples
        lines.append(f"step {report.step}, sample {report.cursor} of {report.planned_samples} ({share:.1f}%)")
        lines.append(_durable(report))
        lines.append(f"{report.samples_at_risk} samples would be trained again if it ended now without a save")
        estimate = report.estimated_save_s
        lines.append(f"a save takes {'an unknown time' if estimate is None else f'about {estimate:.1f} s'}")
    lines.append(f"written {max(0, now_unix_ns - report.written_unix_ns) / 1e9:.1f} s ago")
    return "\n".join(lines)


def _durable(report: StageReport) -> str:
    if report.durable_step is None:
        return "no checkpoint yet"
    since = report.seconds_since_durable
    age = "" if since is None else f", {since:.1f} s before this was written"
    return f"last checkpoint at step {report.durable_step}, sample {report.durable_cursor}{age}"


def main(arguments: list[str]) -> int:
    """0 if it could be read, 1 if not, 2 for wrong usage."""
    if len(arguments) != 1:
        print("usage: python -m trainer.stage_file RUN_FOLDER", file=sys.stderr)
        return 2
    folder = RunFolder(Path(arguments[0]))
    report = read(folder)
    if report is None:
        print(f"no attempt has left a readable {FILE_NAME} in {folder.root}", file=sys.stderr)
        return 1
    print(described(report, time.time_ns()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
