"""Publishing a run: what is registered, what is refused, what is live; and that a retry is as good as the first try."""

from __future__ import annotations

import json
import shutil
import threading
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from publish_run import NEWEST, finished_run, land, refresh_spec, run_spec, save_anchor

from publish import publisher, registry
from publish.__main__ import main
from publish.errors import RegistryError
from publish.predict import main as predict
from publish.registry import LiveOutcome, Registry
from publish.snapshot import verify_snapshot
from trainer.checkpoint import read_reference, reference_table
from trainer.checkpoint.durable import HashedFile
from trainer.checkpoint.errors import NotDurableError
from trainer.dpp.cursor import Interval
from trainer.dpp.plan import ReadPlan
from trainer.model.factory import build_model
from trainer.run_folder import RunFolder
from trainer.spec import Purpose


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    land(home)
    finished_run(home, run_spec("r1"))
    return home


@pytest.fixture
def home(landed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test; the data stay where the plan says they are."""
    shutil.copytree(landed / "runs", tmp_path / "runs")
    (tmp_path / "data").symlink_to(landed / "data")
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.setenv("ETT_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.delenv("ETT_EVENTS_DIR", raising=False)
    return tmp_path


def folder_of(home: Path, run: str = "r1") -> RunFolder:
    return RunFolder.of("movies", run, home / "runs")


def publish(home: Path, run: str = "r1") -> int:
    return main(["--run-folder", folder_of(home, run).url])


def refused(home: Path, run: str = "r1") -> dict[str, Any]:
    """Publish, be refused, and leave nothing behind; what the error file says."""
    before = sorted(path.name for path in (home / "registry").rglob("*"))
    assert publish(home, run) == 1
    assert sorted(path.name for path in (home / "registry").rglob("*") if path.name not in ("movies", "versions")) == [
        name for name in before if name not in ("movies", "versions")
    ]
    return dict(json.loads((home / "error.json").read_text()))


def points(home: Path, name: str, run: str = "r1") -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in folder_of(home, run).events_dir.rglob("*.jsonl") for line in path.open()]
    return [line for line in lines if line.get("name") == name]


def test_a_run_is_published_live_and_scores_as_the_trainer_did(home: Path) -> None:
    assert publish(home) == 0
    movies = Registry.of("movies")
    live = movies.live()
    assert live is not None and (live.number, live.snapshot) == (1, "r1")
    manifest = verify_snapshot(movies.path("r1"))
    assert manifest.metrics is not None
    assert manifest.metrics.max_prediction_difference < 1e-5
    assert manifest.lineage.window == ("2026-01-09", "2026-01-10")
    assert manifest.anchor.path == str(folder_of(home).anchor_dir)
    assert manifest.spec == refresh_spec()
    [point] = points(home, "snapshot_live")
    assert (point["attrs"]["version"], point["wall_ns"]) == ("r1", live.created_unix_ns)

    day = home / "data" / "movies" / "day=2026-01-09" / "part-0.parquet"
    out = home / "scored.parquet"
    assert predict(["movies", str(day), "--out", str(out)]) == 0
    scored, source = pq.read_table(out), pq.read_table(day)
    assert scored["user_id"].to_pylist() == source["user_id"].to_pylist()
    reference = read_reference(folder_of(home).anchor_dir)
    held_out = ReadPlan.load(folder_of(home).plan_path).holdout.held_out(source["user_id"].to_numpy())
    np.testing.assert_allclose(scored["probability"].to_numpy()[held_out], reference["probability"], rtol=0, atol=1e-6)


def test_a_retry_after_registering_succeeds_and_changes_nothing(home: Path) -> None:
    """Case P28."""
    assert publish(home) == 0
    before = verify_snapshot(Registry.of("movies").path("r1"))
    assert publish(home) == 0
    assert verify_snapshot(Registry.of("movies").path("r1")) == before
    assert len(Registry.of("movies").records()) == 1


def test_a_try_that_died_between_registering_and_going_live_is_completed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case P28."""

    def dies(*_: object) -> LiveOutcome:
        raise OSError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(Registry, "go_live", dies)
        assert publish(home) == 1
    assert Registry.of("movies").live() is None
    assert publish(home) == 0
    live = Registry.of("movies").live()
    assert live is not None and live.snapshot == "r1"


def test_a_retry_is_not_green_with_a_damaged_or_lost_version(home: Path) -> None:
    """Case P28: the pointer alone is not a snapshot."""
    assert publish(home) == 0
    path = Registry.of("movies").path("r1")
    with (path / "model.pt").open("r+b") as stream:
        stream.seek(500)
        stream.write(b"\0\0\0\0\xff")
    assert "model.pt: its bytes changed since the save" in refused(home)["message"]
    shutil.rmtree(path)
    assert publish(home) == 0
    assert verify_snapshot(path).version == "r1"


def test_c4_an_anchor_that_timed_out_is_not_published(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes no more bytes while the anchor is written: training fails, and publishing refuses what is left."""
    shutil.rmtree(folder_of(home).anchor_dir)
    moves = threading.Event()
    monkeypatch.setattr(HashedFile, "write", lambda *_: moves.wait(60))
    with pytest.raises(NotDurableError, match="the run has not succeeded"):
        model, nothing = build_model(refresh_spec(), device="cpu"), reference_table(rows=[], labels=[], logits=[])
        save_anchor(folder_of(home), run_spec("r1"), model, nothing, commit_timeout_s=0.5)
    told = refused(home)
    assert "no anchor to publish" in told["message"]
    assert "never committed" in told["message"]
    moves.set()


def test_an_anchor_in_an_object_store_is_published(home: Path, s3: str) -> None:
    folder = finished_run(home, run_spec("on-s3", checkpoint={"root": f"{s3}/models"}))
    assert not folder.anchor_dir.exists()
    assert publish(home, "on-s3") == 0
    manifest = verify_snapshot(Registry.of("movies").path("on-s3"))
    assert manifest.anchor.path == f"{s3}/models/movies/on-s3/anchor"


def test_without_an_anchor_nothing_is_published(home: Path) -> None:
    shutil.rmtree(folder_of(home).anchor_dir)
    told = refused(home)
    assert told["cause"] == "application"
    assert "no anchor to publish" in told["message"]


def test_a_torn_anchor_is_refused_by_file(home: Path) -> None:
    [shard] = folder_of(home).anchor_dir.glob("*.distcp")
    with shard.open("r+b") as stream:
        stream.truncate(1000)
    assert "__0_0.distcp: 1000 bytes, the manifest says" in refused(home)["message"]


def test_an_anchor_of_another_spec_is_refused(home: Path) -> None:
    path = folder_of(home).spec_path
    path.write_text(path.read_text().replace("batch_size: 64", "batch_size: 65"))
    assert "its spec_digest is" in refused(home)["message"]


def test_predictions_that_are_not_the_trainers_are_refused_by_row(home: Path) -> None:
    def off_by_a_bit(scored: dict[str, Any]) -> dict[str, Any]:
        scored["logits"][7] += 0.001
        return scored

    finished_run(home, run_spec("wrong"), reference=off_by_a_bit)
    message = refused(home, "wrong")["message"]
    assert "1 of" in message and "publishing.max_prediction_difference = 1e-05" in message
    assert "file 0, row_group 0, row 7" in message


def test_a_prediction_that_is_no_number_is_refused(home: Path) -> None:
    def broken(scored: dict[str, Any]) -> dict[str, Any]:
        scored["logits"][3] = np.nan
        return scored

    finished_run(home, run_spec("broken"), reference=broken)
    assert "the largest by nan at file 0, row_group 0, row 3" in refused(home, "broken")["message"]


def test_holdout_rows_that_the_trainer_did_not_score_are_refused(home: Path) -> None:
    def without_the_last(scored: dict[str, Any]) -> dict[str, Any]:
        *others, last = scored["rows"]
        shorter = Interval(last.file, last.row_group, last.start, last.stop - 1)
        return {"rows": [*others, shorter], "labels": scored["labels"][:-1], "logits": scored["logits"][:-1]}

    finished_run(home, run_spec("short"), reference=without_the_last)
    assert "rows, the trainer's reference has" in refused(home, "short")["message"]


def test_a_model_below_the_quality_gate_does_not_replace_the_live_one(home: Path) -> None:
    assert publish(home) == 0
    finished_run(home, run_spec("bad", publishing={"min_holdout_auc": 0.999}))
    assert "publishing.min_holdout_auc asks for 0.999" in refused(home, "bad")["message"]
    live = Registry.of("movies").live()
    assert live is not None and live.snapshot == "r1"


def test_data_changed_since_the_plan_is_the_datas_fault(home: Path) -> None:
    (home / "data").unlink()
    land(home)
    path = folder_of(home).plan_path
    plan = json.loads(path.read_text())
    for file in plan["files"]:
        file["path"] = str(home / "data" / "movies" / f"day={file['day']}" / "part-0.parquet")
    path.write_text(json.dumps(plan))
    assert publish(home) == 65
    assert json.loads((home / "error.json").read_text())["cause"] == "data"
    assert not list((home / "registry").rglob("*.pt"))


def test_an_older_days_version_is_registered_and_not_live(home: Path) -> None:
    assert publish(home) == 0
    finished_run(home, run_spec("yesterday", end=date(2026, 1, 9)))
    assert publish(home, "yesterday") == 0
    live = Registry.of("movies").live()
    assert live is not None and live.snapshot == "r1"
    assert verify_snapshot(Registry.of("movies").path("yesterday")).version == "yesterday"
    [point] = points(home, "snapshot_registered", "yesterday")
    assert point["attrs"]["outcome"] == "older_window"
    assert points(home, "snapshot_live", "yesterday") == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_trial_is_registered_and_live_only_if_asked(home: Path, asked: bool) -> None:
    assert publish(home) == 0
    daily = run_spec("trial")
    trial = daily.run.model_copy(update={"purpose": Purpose.TUNING, "publish_live": asked})
    finished_run(home, daily.model_copy(update={"run": trial}))
    assert publish(home, "trial") == 0
    live = Registry.of("movies").live()
    assert live is not None
    assert live.snapshot == ("trial" if asked else "r1")
    [point] = points(home, "snapshot_registered", "trial")
    assert point["attrs"]["outcome"] == ("moved" if asked else "withheld")


def test_the_pointer_never_moves_back_by_itself(home: Path) -> None:
    assert publish(home) == 0
    finished_run(home, run_spec("again"))
    assert publish(home, "again") == 0
    assert publish(home) == 0  # a late retry of the first
    assert [record.snapshot for record in Registry.of("movies").records()] == ["r1", "again"]


def test_versions_never_change(home: Path) -> None:
    assert publish(home) == 0
    finished_run(home, run_spec("r1"))
    assert "was published from another anchor of this run" in refused(home)["message"]
    with pytest.raises(RegistryError, match="versions never change"):
        Registry.of("movies").register("r1", lambda _: None)


def test_of_two_publishers_at_once_the_later_day_stays_live(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another publisher goes live between this one's look and its move."""
    movies = Registry.of("movies")
    window = ("2026-01-09", NEWEST.isoformat())
    create = Registry._create
    others = iter(["tomorrow"])

    def raced(self: Registry, record: registry.LiveRecord) -> bool:
        for other in others:
            Registry.of("movies").go_live(other, ("2026-01-10", "2026-01-11"))
        return create(self, record)

    monkeypatch.setattr(Registry, "_create", raced)
    assert movies.go_live("today", window) is LiveOutcome.OLDER_WINDOW
    assert [record.snapshot for record in movies.records()] == ["tomorrow"]


def test_the_registry_lists_and_names_what_is_live(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert registry.main(["live", "movies"]) == 1
    assert "nothing is live; run the refresh first" in capsys.readouterr().err
    assert publish(home) == 0
    capsys.readouterr()
    assert registry.main(["live", "movies"]) == 0
    assert capsys.readouterr().out.strip() == str(home / "registry" / "movies" / "versions" / "r1")
    assert registry.main(["list", "movies"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("live  r1  [2026-01-09, 2026-01-10)  AUC 0.")
    assert "from scratch" in listed


def test_a_live_record_of_another_version_or_damaged_is_told(home: Path) -> None:
    assert publish(home) == 0
    record = home / "registry" / "movies" / "live" / "1.json"
    record.write_text(record.read_text().replace('"version": 1', '"version": 2'))
    assert "record version 2, this release reads 1" in refused(home)["message"]
    record.write_text("{")
    assert "1.json: is damaged" in refused(home)["message"]


def test_publishing_wrote_nothing_outside_the_registry_and_the_log(home: Path) -> None:
    before = {path for path in folder_of(home).root.rglob("*") if "events" not in path.parts}
    assert publish(home) == 0
    assert {path for path in folder_of(home).root.rglob("*") if "events" not in path.parts} == before
    assert publisher.Registry.of("movies").versions()[0].version == "r1"
