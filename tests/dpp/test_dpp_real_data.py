"""The shipped specs on their real data, fetched from the package index."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from trainer.dpp import prepare
from trainer.dpp.baseline import target_encoding_auc
from trainer.dpp.check import check
from trainer.dpp.cursor import count, steps_for
from trainer.dpp.partitions import landed_days
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import PartitionReader, read_holdout
from trainer.run_folder import HOME_VARIABLE, data_root
from trainer.spec import Contract, RefreshSpec, RunInfo, RunSpec, Window, load_spec

REFRESHES = Path(__file__).parents[2] / "dags" / "refreshes"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def prepared(name: str, days: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RefreshSpec, ReadPlan]:
    """The newest `days` days landed and checked."""
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    path = REFRESHES / f"{name}.yaml"
    assert prepare.main([str(path), "--days", str(days)]) == 0
    spec = load_spec(path)
    root = data_root(spec.data.root)
    landed = landed_days(root)
    assert len(landed) == days
    window = Window(start=landed[0], end=landed[-1] + timedelta(days=1))
    report, plan = check(RunSpec(refresh=spec, run=RunInfo(run="manual-1", window=window)), root)
    assert report.passed, report.message
    assert plan is not None
    return spec, plan


def arrays(reader: PartitionReader, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Dense features and labels."""
    batches = list(reader)
    return np.concatenate([batch.dense for batch in batches]), np.concatenate([batch.labels for batch in batches])


def model_auc(spec: RefreshSpec, plan: ReadPlan) -> float:
    steps = steps_for(count(plan.intervals()), 8192)
    training = PartitionReader(plan, spec.contract, plan.intervals(), batch_size=8192, steps=steps)
    features, labels = arrays(training, spec.contract)
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features, labels)
    held_out = read_holdout(plan, spec.contract, rank=0, world_size=1, batch_size=8192)
    features, labels = arrays(held_out, spec.contract)
    return float(roc_auc_score(labels, model.predict_proba(features)[:, 1]))


@pytest.mark.parametrize(("name", "days"), [("completejourney", 14), ("movielens", 150)])
def test_real_data_keeps_its_contract_and_can_be_learnt_beyond_target_encoding(
    name: str, days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, plan = prepared(name, days, tmp_path, monkeypatch)
    baseline = target_encoding_auc(plan, spec.contract)
    assert baseline["best"] > 0.6
    assert model_auc(spec, plan) > max(baseline["best"], baseline["combined"]) + 0.02
