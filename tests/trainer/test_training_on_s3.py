"""A job whose checkpoints are in an object store: killed, resumed, finished, and nothing of them in the run folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from training_job import Job

from trainer.checkpoint import CheckpointRef, newest_complete, read_reference, verify
from trainer.storage import CheckpointPlace, names_in

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]


def test_a_killed_job_resumes_from_an_object_store(new_job: Callable[..., Job], s3: str) -> None:
    job = new_job("on-s3", checkpoint={"interval_s": 0.3, "keep": 2, "root": f"{s3}/models"})
    place = CheckpointPlace.of(job.folder, job.spec)
    ranks = job.start()
    job.wait_for("a checkpoint", lambda: newest_complete(place.checkpoints), timeout_s=500)
    for rank in ranks:
        rank.kill()
    job.finish(ranks)
    saved = newest_complete(place.checkpoints)
    assert saved is not None
    assert job.run() == [0, 0], job.log()
    assert job.points("restored", attempt=2)[0]["cursor"] == saved.cursor
    anchor = CheckpointRef.open(str(place.anchor))
    assert anchor.cursor == job.planned
    assert names_in(place.anchor) == sorted(["manifest.json", *verify(anchor).files])
    assert read_reference(place.anchor).num_rows > 0
    assert len(names_in(place.checkpoints)) <= 2
    assert not job.folder.anchor_dir.exists()
    assert not job.folder.checkpoints_dir.exists()
