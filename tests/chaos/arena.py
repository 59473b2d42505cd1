"""Where jobs are attacked: one home, one feature log and one refresh for all of them, so that code is compiled once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from chaos_job import ChaosJob

from tests.small_refresh import small_spec
from trainer.dpp.scan import unchecked_plan
from trainer.dpp.sources.generated import Generator
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, RunInfo, RunSpec, Window, dump_run_spec

DAYS = 6
ROWS_PER_DAY = 4000
FIRST_DAY = date(2026, 3, 2)
WINDOW = Window(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=DAYS))


def chaos_spec(**sections: dict[str, Any]) -> RefreshSpec:
    """The small refresh, saving all the time; `sections` override fields by section."""
    often = {"interval_s": 0.05, "keep": 2}
    return small_spec("chaos", **{**sections, "checkpoint": {**often, **sections.get("checkpoint", {})}})


@dataclass(frozen=True)
class Arena:
    """`home` is the session's ETT_HOME."""

    home: Path
    feature_log: Path

    @classmethod
    def build(cls, home: Path) -> Arena:
        """Land the feature log."""
        arena = cls(home, home / "data")
        generator = Generator(chaos_spec().contract, rows_per_day=ROWS_PER_DAY, seed=5)
        generator.land(arena.feature_log, FIRST_DAY + timedelta(days=DAYS - 1), DAYS)
        return arena

    def new_job(self, run: str, *, feature_log: Path | None = None, **sections: dict[str, Any]) -> ChaosJob:
        """A run whose first attempt is due; `sections` override the spec's."""
        spec = chaos_spec(**sections)
        folder = RunFolder.of(spec.name, run).create()
        plan = unchecked_plan(spec, feature_log or self.feature_log, WINDOW)
        plan.dump(folder.plan_path)
        dump_run_spec(RunSpec(refresh=spec, run=RunInfo(run=run, window=WINDOW)), folder.spec_path)
        return ChaosJob(folder, spec, plan.train_rows, testimony=self.home / "witness" / run, temporary=self.temporary)

    @property
    def temporary(self) -> Path:
        """The temporary folder of every job: torch keeps compiled C++ headers there, too dear to make for each."""
        path = self.home / "tmp"
        path.mkdir(exist_ok=True)
        return path

    def own_feature_log(self, run: str) -> Path:
        """A copy of the feature log for one run to spoil."""
        return Path(shutil.copytree(self.feature_log, self.home / "spoiled" / run))
