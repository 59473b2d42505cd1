"""Starts real attempts of a cell under the local launcher: the day before, then the attempt that is measured."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

import psutil

from ett_reports.events import Phase, Source
from ett_reports.log import EventLog
from ett_reports.reader import LogError, read_log
from tests.benchmarks.startup.arms import ALL, Cell, Course, DataSource, NodeFolder
from tests.benchmarks.startup.measures import Measures, first_step_ns, measures_of
from tests.benchmarks.startup.refresh import ground_of, land, new_run, rows_of, spec_of, wrapper_of
from tests.benchmarks.startup.results import code_identity
from trainer.launch import JobHandle, JobKey, JobRequest, JobState, Resources
from trainer.launch.__main__ import main as terminal
from trainer.launch.job_folder import JobFolder
from trainer.launch.local import LocalLauncher
from trainer.run_folder import HOME_VARIABLE, RunFolder
from trainer.spec import RefreshSpec, Technique, WarmStart

RANK_MODULES = Path(__file__).parent / "rank_modules"
LATENCY_S = 20.0
PATIENCE_S = 1800.0
_POLL_S = 0.2  # instants come from the log, so that asking seldom costs no precision
IDLE_PATIENCE_S = 5.0  # a standby without a job leaves by itself: spec_of says when
_SEED = "seed"


class AttemptError(Exception):
    """An attempt did not do what its cell is about; carries the last lines of its ranks."""


@dataclass(frozen=True)
class Bench:
    """Everything the benchmark keeps on disk: data, run folders by refresh, and one `$ETT_HOME` for each run."""

    root: Path

    def measure(self, cell: Cell, *, run: str) -> Measures:
        """Run one attempt of `cell` as a new run named `run`, and say what its log says.

        Raises:
            AttemptError: it ended otherwise than it should.
        """
        anchor = self._prepared(cell)
        return self._attempt(cell, run, anchor)

    # -- the day before -------------------------------------------------------------------------------------------

    def _prepared(self, cell: Cell) -> WarmStart:
        """The refresh's earlier day, run once: its anchor, its plan, and what its techniques archived.

        Every refresh of one model and size starts from one anchor. Refreshes whose arms would archive other code have
        archives of their own; all others get a copy of that day's folder, as it holds the plan.
        """
        course = Course.SHARD if cell.course is Course.SHARD else Course.TRAIN
        base = Cell(on=ALL, course=course, model=cell.model, tables=cell.tables, ranks=cell.ranks)
        anchor = WarmStart(run=_SEED, anchor=str(self._folder(base, _SEED).anchor_dir))
        self._seeded(base, None)
        if ground_of(cell) != ground_of(base):
            if Technique.ARTIFACT_CACHE in cell.on:
                self._seeded(replace(cell, course=course, source=DataSource.AS_IS), anchor)
            else:
                self._copied(base, cell)
        kept = self.kept_folder(cell)
        if cell.node is NodeFolder.KEPT and not kept.exists():
            self._attempt(cell, f"fills-{time.time_ns()}", anchor)
        return anchor

    def _seeded(self, cell: Cell, anchor: WarmStart | None) -> None:
        """Run the earlier day of the cell's refresh, unless this very code has done so."""
        with self._once(cell) as due:
            if due:
                self._attempt(cell, _SEED, anchor)

    def _copied(self, base: Cell, cell: Cell) -> None:
        """Give the cell's refresh what that of `base` kept."""
        with self._once(cell) as due:
            if due:
                cache = self._folder(base, _SEED).compile_cache_dir
                shutil.copytree(cache, self._refresh(cell) / cache.name)

    @contextmanager
    def _once(self, cell: Cell) -> Iterator[bool]:
        """Whether the cell's refresh is still to be prepared for the code as it is; what other code left is deleted."""
        refresh, code = self._refresh(cell), code_identity()
        mark = refresh / "prepared-for"
        due = not mark.exists() or mark.read_text() != code
        if due:
            shutil.rmtree(refresh, ignore_errors=True)
        yield due
        mark.write_text(code)

    # -- one attempt ----------------------------------------------------------------------------------------------

    def _attempt(self, cell: Cell, run: str, anchor: WarmStart | None) -> Measures:
        spec = spec_of(cell)
        data = land(spec, self.root / "data", rows_of(cell))
        folder = new_run(spec, data, self._runs, run, warm_start=anchor)
        with self._home(cell) as home:
            job = _Job(folder, spec, wrapper_of(cell))
            handle = job.submit(1)
            number = 1
            if cell.course is Course.RESTART:
                job.until(handle, "a checkpoint", lambda: any(folder.checkpoints_dir.glob("step-*/manifest.json")))
                job.kill_a_rank(handle)
                number = 2
                handle = job.submit(number)
            if cell.course is Course.TRAIN or run == _SEED:
                job.ends_well(handle)
            else:
                job.until(handle, "its stage", lambda: job.has_reached(cell, handle, number))
            log = job.log(handle)
            _terminal_quietly(["cancel", "--all"])
            end_processes(home)
        found = measures_of(log, attempt=number)
        if run != _SEED:
            shutil.rmtree(folder.root, ignore_errors=True)
        return found

    @contextmanager
    def _home(self, cell: Cell) -> Iterator[Path]:
        """A `$ETT_HOME` of its own, so that no standby and no queue of another run is met."""
        homes = self.root / "homes"
        homes.mkdir(parents=True, exist_ok=True)
        home = Path(mkdtemp(dir=homes))
        variables = {
            HOME_VARIABLE: str(home),
            "PYTHONPATH": os.pathsep.join([str(RANK_MODULES), os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "ignore",
            "ETT_BENCH_LATENCY_S": str(LATENCY_S),
            "ETT_BENCH_KEPT_FOLDER": str(self.kept_folder(cell)),
        }
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield home
        finally:
            end_processes(home)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            shutil.rmtree(home, ignore_errors=True)

    @property
    def _runs(self) -> Path:
        return self.root / "runs"

    def _refresh(self, cell: Cell) -> Path:
        return self._runs / ground_of(cell)

    def _folder(self, cell: Cell, run: str) -> RunFolder:
        return RunFolder.of(ground_of(cell), run, self._runs)

    def kept_folder(self, cell: Cell) -> Path:
        """Named by the code too: what other code compiled is no local cache of this."""
        return self.root / "kept" / f"{cell.name}-{code_identity()}"


@dataclass(frozen=True)
class _Job:
    """One run's attempts as jobs of the local launcher."""

    folder: RunFolder
    spec: RefreshSpec
    module: str

    def submit(self, attempt: int) -> JobHandle:
        """As the train operator does."""
        resources = self.spec.resources
        standby = self.module == "trainer" and self.spec.optimizations.enabled(Technique.WARM_STANDBY)
        key = JobKey(refresh=self.folder.refresh, run=self.folder.run, task="train", attempt=attempt)
        return LocalLauncher().submit(
            JobRequest(
                key=key,
                command=(self.module,),
                run_folder=self.folder,
                replicas=resources.ranks,
                devices=resources.ranks,
                resources=Resources(cpus=1, memory_mb=4096),
                grace_s=resources.grace_s,
                hang_timeout_s=resources.hang_timeout_s,
                standby_idle_s=resources.standby_idle_s if standby else None,
            )
        )

    def ends_well(self, handle: JobHandle) -> None:
        self._wait(lambda: LocalLauncher().describe(handle).terminal, handle, "its end")
        if (state := LocalLauncher().describe(handle).state) is not JobState.SUCCEEDED:
            raise self._error(handle, f"ended as {state}")

    def until(self, handle: JobHandle, what: str, reached: Callable[[], bool]) -> None:
        """Wait until `reached`, which may be so before the job's end only."""

        def over() -> bool:
            return reached() or LocalLauncher().describe(handle).terminal

        self._wait(over, handle, what)
        if not reached():
            raise self._error(handle, f"ended before {what}")

    def kill_a_rank(self, handle: JobHandle) -> None:
        """kill -9 of the last rank; returns when the job has ended by it."""
        launcher = LocalLauncher()
        os.kill(launcher.describe(handle).ranks[-1].pid, signal.SIGKILL)
        self._wait(lambda: launcher.describe(handle).terminal, handle, "its end by a killed rank")

    def log(self, handle: JobHandle) -> EventLog:
        """The run's log; while the job lives, the node's part of it."""
        ended = LocalLauncher().describe(handle).terminal
        return read_log(self.folder.events_dir if ended else JobFolder.of(handle.id).events_dir)

    def has_reached(self, cell: Cell, handle: JobHandle, attempt: int) -> bool:
        """Whether every rank has sharded its model, or taken its first step."""
        try:
            log = self.log(handle)
        except LogError:  # nothing written yet
            return False
        ranks = [
            process
            for process in log.processes
            if process.identity.source is Source.TRAINER and process.identity.attempt == attempt
        ]
        if len(ranks) < cell.ranks:
            return False
        if cell.course is Course.SHARD:  # the stage behind the last part of sharding has begun
            return all(any(span.phase is Phase.PLUGIN_INIT for span in rank.spans) for rank in ranks)
        return all(first_step_ns(rank) is not None for rank in ranks)

    def _wait(self, over: Callable[[], bool], handle: JobHandle, what: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not over():
            if time.monotonic() > give_up:
                raise self._error(handle, f"no {what} within {PATIENCE_S:.0f} s")
            time.sleep(_POLL_S)

    def _error(self, handle: JobHandle, what: str) -> AttemptError:
        lines = "\n".join(LocalLauncher().logs(handle, last=25))
        return AttemptError(f"{self.folder.job}: {what}\n{lines}")


def _terminal_quietly(arguments: list[str]) -> None:
    """`python -m trainer.launch`, in this process and without its words."""
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        terminal(arguments)


def end_processes(home: Path) -> None:
    """Wait until nothing of `home` is left, a standby that idles included; what stays is killed, by its id."""
    deadline = time.monotonic() + IDLE_PATIENCE_S
    while left := _processes_of(home):
        if time.monotonic() > deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        time.sleep(0.1)


def _processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(HOME_VARIABLE) == str(home):
                found.append(process)
    return found
