"""Anchors are found where each run's spec says they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from ett_airflow.anchors import completed_anchors
from ett_airflow.operators import airflow_run
from ett_airflow.resolution import resolve
from s3fs import S3FileSystem

from tests.plugins.conftest import SPEC_PATH, context_of
from tests.plugins.test_next_day import land
from trainer.run_folder import RunFolder, runs_root
from trainer.spec import RefreshSpec, load_spec, with_overrides
from trainer.storage import MANIFEST_NAME, CheckpointPlace


def start(run: str, spec: RefreshSpec) -> CheckpointPlace:
    params = {"window_start": "2026-11-27", "window_end": "2026-11-29"}
    resolve(spec, airflow_run(context_of(run, params=params)))
    return CheckpointPlace.of(RunFolder.of("tiny", run), spec)


def test_an_anchor_in_an_object_store_is_where_a_later_run_starts_from(home: Path, s3: str) -> None:
    land(home, 5)
    spec = with_overrides(load_spec(SPEC_PATH), {"checkpoint": {"root": f"{s3}/models"}})
    place = start("a", spec)
    assert completed_anchors(runs_root() / "tiny") == []
    (place.anchor / MANIFEST_NAME).write_bytes(b"{}")
    [anchor] = completed_anchors(runs_root() / "tiny")
    assert anchor.run == "a"
    assert anchor.warm_start().anchor == f"{s3}/models/tiny/a/anchor"


def test_a_store_out_of_reach_is_told_rather_than_an_older_anchor_taken(
    home: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(home, 5)
    spec = with_overrides(load_spec(SPEC_PATH), {"checkpoint": {"root": f"{s3}-misspelt/models"}})
    start("a", spec)
    with pytest.raises(OSError, match=r"s3://.*bucket does not exist"):
        completed_anchors(runs_root() / "tiny")
    monkeypatch.setattr(S3FileSystem, "_call_s3", _no_answer)
    with pytest.raises(OSError, match="check the address and the credentials"):
        completed_anchors(runs_root() / "tiny")


async def _no_answer(*_: object, **__: object) -> None:
    from botocore.exceptions import EndpointConnectionError

    raise EndpointConnectionError(endpoint_url="http://nowhere")
