"""The folder that an Airflow run works in: its own, and another one for each time that its day is trained again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ett_airflow.generation import RunIdentity, RunNameTakenError, began_ns, owner_of
from ett_airflow.seen_ends import SeenEnds

from trainer.launch import JobState, JobStatus
from trainer.run_folder import RunFolder, registry_root

RUN = RunIdentity("tiny", "manual__2026-11-29T10:00")


def train(folder: RunFolder) -> None:
    SeenEnds(folder, "train").add(JobStatus(state=JobState.SUCCEEDED, attempt=1))


def test_it_is_the_same_one_until_the_day_is_trained_then_the_next(home: Path) -> None:
    first = RUN.begin()
    assert first.run == "manual__2026-11-29T10_00"
    assert RUN.begin() == RUN.folder == first
    SeenEnds(first, "train").add(JobStatus(state=JobState.FAILED, attempt=1))
    assert RUN.begin() == first, "a failed job is gone on with"
    train(first)
    assert RUN.folder == first
    second = RUN.begin()
    assert second.run == f"{first.run}.again2"
    assert RUN.folder == second
    train(second)
    assert RUN.begin().run == f"{first.run}.again3"
    assert (began_ns(first), began_ns(second)) == (None, (second.root / "airflow.json").stat().st_mtime_ns)


def test_a_run_whose_id_looks_like_another_s_second_folder_keeps_its_own(home: Path) -> None:
    other = RunIdentity("tiny", "a.again2").begin()
    first = RunIdentity("tiny", "a").begin()
    assert RunIdentity("tiny", "a").folder == first
    train(first)
    assert RunIdentity("tiny", "a").begin().run == "a.again3"
    assert owner_of(other) == "a.again2"


def test_a_run_id_that_would_share_a_folder_is_refused(home: Path) -> None:
    RUN.begin()
    with pytest.raises(RunNameTakenError, match="another run id"):
        RunIdentity("tiny", "manual__2026-11-29T10_00").begin()


def test_a_version_that_is_registered_is_never_trained_under_its_name_again(home: Path) -> None:
    """Housekeeping has removed the run's folder; the snapshot is still there."""
    (registry_root() / "tiny" / "versions" / "a").mkdir(parents=True)
    assert RunIdentity("tiny", "a").begin().run == "a.again2"


def test_a_folder_made_by_hand_is_anybody_s(home: Path) -> None:
    folder = RunFolder.of("tiny", "a").create()
    assert owner_of(folder) is None
    assert RunIdentity("tiny", "a").begin() == folder
    assert json.loads((folder.root / "airflow.json").read_text())["run_id"] == "a"
