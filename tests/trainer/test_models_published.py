"""Every shipped model from spec to snapshot: trained on 2 ranks, compiled, evaluated, anchored, published, scored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from training_job import Job

from publish.__main__ import main as publish
from publish.predict import main as predict
from publish.registry import Registry
from publish.snapshot import verify_snapshot
from trainer.checkpoint import CheckpointRef, read_reference
from trainer.dpp.plan import ReadPlan

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]

FACTORIES = {
    "pairwise": ("trainer.model.dlrm:dlrm", {}),
    "dcn": ("trainer.model.dcn_v2:dlrm_dcn_v2", {"cross_layers": 2, "cross_rank": 4}),
    "attention": ("trainer.model.attention:dlrm_attention", {"heads": 2}),
}


@pytest.fixture(scope="module", params=FACTORIES)
def trained(request: pytest.FixtureRequest, new_job: Callable[..., Job]) -> Job:
    factory, options = FACTORIES[request.param]
    job = new_job(
        request.param,
        model={"factory": factory, "options": options},
        publishing={"min_holdout_auc": 0.5},
    )
    assert job.finish(job.start(), timeout_s=1200) == [0, 0], job.log()
    return job


def test_it_learns_over_all_rows_and_compiles_its_tower_once(trained: Job) -> None:
    assert trained.points("completed") == [{"cursor": trained.planned}]
    progressive, holdout = trained.quality("progressive"), trained.quality("holdout")
    assert progressive["rows"] == trained.planned
    assert holdout["auc"] > 0.55
    assert holdout["ne"] < 1
    for rank in (0, 1):
        phases = trained.phases(attempt=1, rank=rank)
        assert phases["compile"] > 0
        assert "recompile" not in phases
        assert trained.notes("train_module", attempt=1, rank=rank)["tables"] == 2


def test_its_anchor_holds_every_table_by_its_unsharded_name(trained: Job) -> None:
    names = CheckpointRef.open(trained.folder.anchor_dir).manifest().tensors
    tables = [name for name in names if name.startswith("model.") and "_id.weight" in name]
    assert len(tables) == 2, sorted(names)
    sequences = [name for name in tables if ".embeddings.product_id.weight" in name]
    assert len(sequences) == (1 if "attention" in trained.spec.model.factory else 0)


def test_it_is_published_and_scores_as_the_trainer_did(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("ETT_ERROR_FILE", str(tmp_path / "error.json"))
    assert publish(["--run-folder", trained.folder.url]) == 0, (tmp_path / "error.json").read_text()
    snapshot = Registry.of(trained.spec.name).path(trained.folder.run)
    metrics = verify_snapshot(snapshot).metrics
    assert metrics is not None
    assert metrics.max_prediction_difference < 1e-6

    plan, out = ReadPlan.load(trained.folder.plan_path), tmp_path / "scored.parquet"
    reference = read_reference(trained.folder.anchor_dir)
    assert len(reference) > 0
    for number, file in enumerate(plan.files):
        assert predict([str(snapshot), str(file.path), "--out", str(out)]) == 0
        households = pq.read_table(file.path)["household_id"].to_numpy()
        scored = pq.read_table(out)["probability"].to_numpy()[plan.holdout.held_out(households)]
        theirs = reference.filter(pc.field("file") == number)["probability"].to_numpy()
        np.testing.assert_allclose(scored, theirs, rtol=0, atol=1e-6)
