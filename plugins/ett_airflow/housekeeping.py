"""Removes what a refresh no longer needs, by the `retention` of its spec.

`python -m ett_airflow.housekeeping --dry-run|--apply [--refresh NAME] [--specs FOLDER]`
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ett_airflow.housekeeping_facts import Expired, Kind, Plan
from ett_airflow.housekeeping_removal import Removed, remove
from ett_airflow.housekeeping_rules import leftovers, plan
from ett_airflow.housekeeping_survey import (
    Activity,
    IsRunning,
    JobIndex,
    job_is_orphan,
    left_on_machine,
    measured,
    run_folders,
    survey,
)
from trainer.run_folder import RunFolder, home, runs_root
from trainer.spec import RefreshSpec, SpecError, load_run_spec, load_spec

log = logging.getLogger(__name__)

THIS_MACHINE = "(this machine)"


class Mode(StrEnum):
    """What is done with what has expired."""

    LIST = "list"
    REMOVE = "remove"
    AS_IN_SPEC = "as in the spec"  # remove where `retention.apply` says so, list elsewhere


@dataclass(frozen=True, kw_only=True)
class Tidied:
    """What housekeeping found in one refresh, and what it did; `error` if it could not look at it at all."""

    refresh: str
    mode: Mode
    plan: Plan
    removed: Removed
    error: str = ""

    @property
    def failures(self) -> list[str]:
        return [*self.removed.failures, *([f"{self.refresh}: {self.error}"] if self.error else [])]


def tidy(
    specs: Path,
    mode: Mode,
    *,
    only: str | None = None,
    is_running: IsRunning | None = None,
    airflow_logs: Path | None = None,
) -> list[Tidied]:
    """Every refresh in the folder `specs`, and what of this machine belongs to none. One's failure stops no other."""
    jobs, done = JobIndex(), []
    for path in sorted(specs.glob("*.yaml")):
        try:
            spec = load_spec(path)
        except SpecError as error:
            if only is None:
                done.append(_failed(path.stem, str(error).partition("\n")[0]))
            continue
        if only in (None, spec.name):
            activity = Activity(spec.name, jobs, is_running)
            done.append(_tidy_refresh(spec, mode, activity, jobs, airflow_logs))
    if only is None:
        done.append(_tidy_machine(Mode.REMOVE if any(each.mode is Mode.REMOVE for each in done) else Mode.LIST))
    return done


def _failed(refresh: str, error: str) -> Tidied:
    return Tidied(refresh=refresh, mode=Mode.LIST, plan=Plan(refresh=refresh), removed=Removed(), error=error)


def _tidy_refresh(
    spec: RefreshSpec, mode: Mode, activity: Activity, jobs: JobIndex, airflow_logs: Path | None
) -> Tidied:
    if mode is Mode.AS_IN_SPEC:
        mode = Mode.REMOVE if spec.retention.apply else Mode.LIST
    try:
        facts = survey(spec, activity, jobs=jobs, airflow_logs=airflow_logs)
        planned = plan(facts)
        removed = Removed()
        if mode is Mode.REMOVE:
            removed = remove(planned.expired, Objections(spec.name, activity, since_s=facts.now_s).to)
    except Exception as error:  # one refresh's damage is not another's
        log.exception("housekeeping of %s failed", spec.name)
        return _failed(spec.name, f"{type(error).__name__}: {error}")
    return Tidied(refresh=spec.name, mode=mode, plan=planned, removed=removed)


def _tidy_machine(mode: Mode) -> Tidied:
    expired = list(leftovers(THIS_MACHINE, left_on_machine(), time.time()))
    removed = remove(expired, lambda item: "") if mode is Mode.REMOVE else Removed()
    return Tidied(refresh=THIS_MACHINE, mode=mode, plan=Plan(refresh=THIS_MACHINE, expired=expired), removed=removed)


class Objections:
    """Asked right before each removal: a run may have been cleared, or a new one begun, since the survey."""

    def __init__(self, refresh: str, activity: Activity, *, since_s: float) -> None:
        self._refresh = refresh
        self._activity = activity
        self._since_s = since_s

    def to(self, item: Expired) -> str:
        """Why `item` stays after all; empty if nothing has changed."""
        if item.kind in (Kind.COMPILE_ARCHIVE, Kind.LEFTOVER, Kind.AIRFLOW_LOGS):
            return ""
        if item.kind is Kind.JOB and not job_is_orphan(item.path):
            return "its run folder is still there"
        folder = RunFolder(runs_root() / self._refresh / item.run)
        if folder.root.exists():
            if active := self._activity.of(folder):
                return f"has become active: {active}"
            if measured(folder.root).written_s > self._since_s:
                return "its run has been written to since"
        if item.kind in (Kind.ANCHOR, Kind.RUN) and (starter := self._started_since(item.run)):
            return f"run {starter} has started from it"
        return ""

    def _started_since(self, run: str) -> str:
        """A run that was resolved after the survey and names `run` as its warm start."""
        for folder in run_folders(runs_root() / self._refresh):
            try:
                if folder.spec_path.stat().st_mtime < self._since_s - 1:
                    continue
                start = load_run_spec(folder.spec_path).run.warm_start
            except (OSError, SpecError):
                continue
            if start is not None and start.run == run:
                return folder.run
        return ""


def table(done: Sequence[Tidied]) -> str:
    """What goes or went, why, and how much that frees, with what stays; for a log or a terminal."""
    lines = []
    for each in done:
        items = each.removed.items if each.mode is Mode.REMOVE else each.plan.expired
        verb = "removed" if each.mode is Mode.REMOVE else "would be removed (dry run)"
        lines.append(f"{each.refresh}: {len(items)} {verb}, {size(sum(item.bytes for item in items))}")
        lines += [f"  {size(item.bytes):>10}  {item.kind:<17}  {_short(item.path)}: {item.why}" for item in items]
        lines += [f"  {'kept':>10}  {kept.kind:<17}  {_short(kept.path)}: {kept.why}" for kept in each.plan.kept]
        lines += [f"  {'spared':>10}  {told}" for told in each.removed.spared]
        lines += [f"  {'FAILED':>10}  {told}" for told in each.failures]
    return "\n".join(lines)


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _short(path: object) -> str:
    text = str(path)
    return text.removeprefix(f"{home()}/")


def main(arguments: list[str]) -> int:
    """0: done; 1: something could not be removed or looked at."""
    parser = argparse.ArgumentParser(prog="python -m ett_airflow.housekeeping", description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dry-run", action="store_true", help="list what has expired; removes nothing")
    what.add_argument("--apply", action="store_true", help="remove it, whatever the spec's retention.apply says")
    parser.add_argument("--refresh", help="only this one")
    parser.add_argument("--specs", type=Path, default=default_specs(), help="folder of the refresh specs")
    options = parser.parse_args(arguments)
    mode = Mode.REMOVE if options.apply else Mode.LIST
    done = tidy(options.specs, mode, only=options.refresh, airflow_logs=_airflow_logs())
    if not done:
        print(f"no refresh named {options.refresh!r} in {options.specs}", file=sys.stderr)
        return 1
    print(table(done))
    return 1 if any(each.failures for each in done) else 0


def default_specs() -> Path:
    """Where the DAG file looks for specs too."""
    return Path(os.environ.get("ETT_SPECS") or Path(__file__).resolve().parents[2] / "dags" / "refreshes")


def _airflow_logs() -> Path | None:
    """Of the Airflow that this shell is set up for, or of the local one."""
    configured = os.environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER")
    airflow_home = os.environ.get("AIRFLOW_HOME")
    folder = Path(configured) if configured else Path(airflow_home or home() / "airflow") / "logs"
    return folder if folder.is_dir() else None


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv[1:]))
