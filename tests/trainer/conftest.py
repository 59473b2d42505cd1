"""Generated data and run folders for the trainer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from training_job import FIRST_DAY, Job, small_spec

from trainer.run_folder import RunFolder
from trainer.spec import RunInfo, RunSpec, WarmStart, Window, dump_run_spec

JobFactory = Callable[..., Job]


@pytest.fixture(scope="session")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six days of 4000 generated rows."""
    from trainer.dpp.sources.generated import Generator

    root = tmp_path_factory.mktemp("landed")
    generator = Generator(small_spec().contract, rows_per_day=4000, seed=5)
    generator.land(root, FIRST_DAY + timedelta(days=5), 6)
    return root


@pytest.fixture(scope="session")
def new_job(tmp_path_factory: pytest.TempPathFactory, landed: Path) -> Iterator[JobFactory]:
    """Makes runs of one refresh, which share its compile cache; whatever still runs at the end is killed."""
    from trainer.dpp.scan import unchecked_plan

    root = tmp_path_factory.mktemp("runs")
    jobs: list[Job] = []

    def make(
        run: str,
        *,
        days: tuple[int, int] = (0, 5),
        warm_start: WarmStart | None = None,
        data_root: Path = landed,
        **sections: dict[str, Any],
    ) -> Job:
        spec = small_spec(**sections)
        folder = RunFolder.of(spec.name, run, root).create()
        window = Window(start=FIRST_DAY + timedelta(days=days[0]), end=FIRST_DAY + timedelta(days=days[1]))
        plan = unchecked_plan(spec, data_root, window)
        plan.dump(folder.plan_path)
        info = RunInfo(run=run, window=window, warm_start=warm_start)
        dump_run_spec(RunSpec(refresh=spec, run=info), folder.spec_path)
        jobs.append(Job(folder, spec, plan.train_rows))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()
