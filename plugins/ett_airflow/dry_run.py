"""What a run would be, beside what the daily run would be: shown, not done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from ett_airflow.parameters import WINDOW_END, WINDOW_START
from ett_airflow.resolution import AirflowRun, decided
from ett_airflow.window import NothingToTrainError
from trainer.spec import RefreshSpec, RunSpec, RunType


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that the daily run would have otherwise; None where it has none."""

    field: str
    daily: Any
    here: Any


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The resolved spec of a run that is not done, and where it is not that of the daily run.

    The daily run is the one that would begin now or, with every landed day trained, the one of the same days.
    """

    spec: RunSpec
    differences: tuple[Difference, ...]

    def lines(self) -> Iterator[str]:
        """For the task's log."""
        yield "dry run: nothing was written, the other tasks are skipped. The run would be:"
        yield from yaml.safe_dump(self.spec.model_dump(mode="json", exclude_none=True), sort_keys=False).splitlines()
        if not self.differences:
            yield "the daily run would be the same"
        else:
            yield "what differs from the daily run:"
            yield from (f"  {each.field}: {each.here!r} (daily: {each.daily!r})" for each in self.differences)

    def to_json(self) -> dict[str, Any]:
        """The XCom `dry_run`."""
        return {
            "spec": self.spec.model_dump(mode="json", exclude_none=True),
            "differs": {each.field: {"daily": each.daily, "here": each.here} for each in self.differences},
        }


def show_dry_run(spec: RefreshSpec, run: AirflowRun) -> DryRun:
    """Resolve a run as it would be now.

    Raises:
        WindowError, SpecError: the Params cannot be used.
    """
    folder = run.identity.folder
    resolved = decided(spec, run, folder)
    daily = replace(run, run_type=str(RunType.ASSET), interval=None, params={})
    try:
        usual = decided(spec, daily, folder)
    except NothingToTrainError:
        window = resolved.run.window
        same_days = {WINDOW_START: str(window.start), WINDOW_END: str(window.end)}
        usual = decided(spec, replace(daily, params=same_days), folder)
    return DryRun(spec=resolved, differences=tuple(_differences(_compared(usual), _compared(resolved))))


def _compared(spec: RunSpec) -> dict[str, Any]:
    """Without what says how a run came about."""
    content: dict[str, Any] = spec.model_dump(mode="json")
    for name in ("run", "run_type", "params", "newest_day"):
        content["run"].pop(name)
    return content


def _differences(daily: Any, here: Any, field: str = "") -> Iterator[Difference]:
    if isinstance(daily, dict) and isinstance(here, dict):
        for name in [*daily, *(name for name in here if name not in daily)]:
            yield from _differences(daily.get(name), here.get(name), f"{field}.{name}" if field else name)
    elif daily != here:
        yield Difference(field=field, daily=daily, here=here)
