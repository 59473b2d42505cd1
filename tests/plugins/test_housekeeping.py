"""Housekeeping: what has expired goes, whole and out of sight first; what anybody could still need stays."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ett_airflow import housekeeping_operator, housekeeping_removal
from ett_airflow.chain_lock import ChainLock, Holder
from ett_airflow.housekeeping import Mode, Objections, Tidied, main, table, tidy
from ett_airflow.housekeeping_facts import TRASH, Kind
from ett_airflow.housekeeping_operator import HousekeepingError, HousekeepingOperator
from ett_airflow.housekeeping_survey import Activity, JobIndex

from tests.plugins.conftest import SPEC_PATH, wait_until
from trainer.launch import JobKey, JobRequest, JobState
from trainer.launch.job_folder import JobFolder, all_jobs
from trainer.launch.local import LocalLauncher, observe
from trainer.run_folder import RunFolder, data_root, registry_root, runs_root
from trainer.spec import (
    Purpose,
    RefreshSpec,
    Retention,
    RunInfo,
    RunSpec,
    WarmStart,
    Window,
    dump_run_spec,
    load_run_spec,
    load_spec,
)
from trainer.storage import CheckpointPlace, located, names_in

FIRST = date(2026, 11, 1)
DAY_S = 86400.0


@pytest.fixture(autouse=True)
def private(home: Path) -> None:
    """Everything below a home of its own."""


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A folder with the spec of refresh `tiny`; `retain` rewrites its retention."""
    folder = tmp_path / "refreshes"
    folder.mkdir()
    retain(folder)
    return folder


def retain(folder: Path, **retention: Any) -> None:
    text = SPEC_PATH.read_text()
    (folder / "tiny.yaml").write_text(f"{text}\nretention: {json.dumps({'anchors': 2, 'snapshots': 1, **retention})}\n")


def make_run(
    number: int,
    *,
    days_old: float,
    anchor: bool = True,
    start: str | None = None,
    purpose: Purpose = Purpose.DAILY,
    root: str | None = None,
    name: str | None = None,
) -> RunFolder:
    """The folder of a run over day `number`, last written so many days ago."""
    folder = RunFolder.of("tiny", name or f"day-{number}").create()
    day = FIRST + timedelta(days=number)
    spec = load_spec(SPEC_PATH)
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"root": root})})
    info = RunInfo(
        run=folder.run,
        window=Window(start=day, end=day + timedelta(days=1)),
        warm_start=WarmStart(run=start, anchor="somewhere") if start else None,
        purpose=purpose,
    )
    dump_run_spec(RunSpec(refresh=spec, run=info), folder.spec_path)
    (folder.root / "airflow.json").write_text(json.dumps({"version": 1, "dag_id": "tiny", "run_id": folder.run}))
    fill(folder.events_dir / "airflow-train-t1-1" / "0.jsonl", 10)
    fill(folder.logs_dir / "train-a1" / "rank-0.log", 3000)
    place = Path(root) / "tiny" / folder.run if root else folder.root
    fill(place / "checkpoints" / "step-10-abc" / "manifest.json", 100)
    if anchor:
        fill(place / "anchor" / "manifest.json", 100)
    age(folder.root, days_old)
    return folder


def fill(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * count)


def age(path: Path, days: float) -> None:
    """As if everything in it had been written that long ago."""
    then = time.time() - days * DAY_S
    for each in [path, *path.rglob("*")]:
        os.utime(each, (then, then))


def register(*versions: str, days_old: float = 60.0, live: tuple[str, ...] = ()) -> Path:
    root = registry_root() / "tiny"
    for version in versions:
        fill(root / "versions" / version / "manifest.json", 50)
        age(root / "versions" / version, days_old)
    for number, version in enumerate(live, start=1):
        path = root / "live" / f"{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"number": number, "snapshot": version, "version": 1}))
    return root / "versions"


def found(specs: Path, **kwargs: Any) -> Tidied:
    return tidy(specs, Mode.LIST, **kwargs)[0]


def gone(tidied: Tidied, kind: Kind) -> list[str]:
    """Names of what the plan has expired of one kind."""
    return sorted(item.run or Path(str(item.path)).name for item in tidied.plan.expired if item.kind is kind)


def files_of(home: Path) -> set[str]:
    return {str(path) for path in home.rglob("*") if path.is_file() and path.name != ".chain.lock"}


# -- what expires, what stays -----------------------------------------------------------------------------------------


def test_a_run_folder_goes_when_it_is_old_and_no_chain_needs_its_anchor(specs: Path) -> None:
    for number in range(4):
        make_run(number, days_old=200)
    make_run(9, days_old=200, anchor=False)
    make_run(10, days_old=80, anchor=False)
    assert gone(found(specs), Kind.RUN) == ["day-0", "day-1", "day-9"]


def test_step_checkpoints_of_a_finished_run_go_and_those_of_a_failed_one_wait(specs: Path) -> None:
    make_run(0, days_old=2)
    make_run(1, days_old=2, anchor=False)
    make_run(2, days_old=10, anchor=False)
    assert gone(found(specs), Kind.CHECKPOINTS) == ["day-0", "day-2"]


def test_an_anchor_that_no_chain_needs_goes_once_it_is_published(specs: Path) -> None:
    for number in range(5):
        make_run(number, days_old=10)
    register("day-0", "day-2", live=("day-2",))
    tidied = found(specs)
    assert gone(tidied, Kind.ANCHOR) == ["day-0"]  # day-1 is still to be published, day-2 is live, 3 and 4 are newest
    kept = {Path(str(kept.path)).parent.name: kept.why for kept in tidied.plan.kept if kept.kind is Kind.ANCHOR}
    assert kept["day-2"] == "the live snapshot was made from it"
    assert kept["day-4"] == "one of the newest 2 (retention.anchors)"


def test_the_anchor_before_a_day_that_is_not_trained_yet_stays(specs: Path) -> None:
    for number in (0, 1, 3, 4, 5):  # day 2 was missed
        make_run(number, days_old=10)
    register(*(f"day-{number}" for number in range(6)), live=("day-5",))
    for number in range(7):
        fill(data_root("tiny") / f"day={FIRST + timedelta(days=number)}" / "_LANDED.json", 2)
    tidied = found(specs)
    assert gone(tidied, Kind.ANCHOR) == ["day-0", "day-3"]
    assert any("day 2026-11-03, not trained yet or stale, would" in kept.why for kept in tidied.plan.kept)


def test_the_new_anchor_of_a_day_trained_again_stays_while_its_descendants_are_stale(specs: Path) -> None:
    for number in range(6):
        folder = make_run(number, days_old=10)
        fill(data_root("tiny") / f"day={FIRST + timedelta(days=number)}" / "_LANDED.json", 2)
        if number > 1:
            (folder.root / "stale.json").write_text("{}")
            age(folder.root, 10)
    make_run(1, days_old=9, name="day-1.again2")
    register(*(f"day-{number}" for number in range(6)), "day-1.again2", live=("day-5",))
    assert gone(found(specs), Kind.ANCHOR) == ["day-0", "day-1"]


def test_the_anchor_that_an_unfinished_run_started_from_stays(specs: Path) -> None:
    for number in range(4):
        make_run(number, days_old=10)
    make_run(4, days_old=10, anchor=False, start="day-0")
    register("day-0", "day-1", "day-2", "day-3", live=("day-3",))
    assert gone(found(specs), Kind.ANCHOR) == ["day-1"]


def test_anchors_of_another_model_do_not_push_out_those_that_fit(specs: Path) -> None:
    for number in range(5):
        make_run(number, days_old=10)
    for number in (2, 3, 4):  # tried on another model, which the spec has gone back from
        path = RunFolder.of("tiny", f"day-{number}").spec_path
        path.write_text(path.read_text().replace("embedding_dim: 8", "embedding_dim: 16").replace("- 8\n", "- 16\n"))
        age(path, 10)
    register(*(f"day-{number}" for number in range(5)), live=("day-4",))
    assert gone(found(specs), Kind.ANCHOR) == ["day-2"]


def test_a_trial_s_anchor_takes_no_place_in_the_chain(specs: Path) -> None:
    for number in (0, 1):
        make_run(number, days_old=40)
    for number in (5, 6):
        make_run(number, days_old=40, purpose=Purpose.TUNING, name=f"trial-{number}")
    make_run(7, days_old=10, purpose=Purpose.TUNING, name="trial-7")
    register("day-0", "day-1", live=("day-1",))
    assert gone(found(specs), Kind.ANCHOR) == ["trial-5", "trial-6"]


def test_the_live_snapshot_and_those_live_before_it_stay_whatever_their_age(specs: Path) -> None:
    register("a", "b", "c", "never", live=("a", "b", "a", "c"))
    register("young", days_old=3)
    tidied = found(specs)
    assert gone(tidied, Kind.SNAPSHOT) == ["b", "never"]
    assert {kept.why for kept in tidied.plan.kept} >= {"is live", "was live before (retention.snapshots)"}


def test_a_registry_whose_live_record_is_damaged_is_not_touched(specs: Path) -> None:
    versions = register("a", "b", live=("a",))
    (versions.parent / "live" / "2.json").write_text("{")
    tidied = found(specs)
    assert gone(tidied, Kind.SNAPSHOT) == []
    assert any("what is live cannot be read" in kept.why for kept in tidied.plan.kept)


def test_compile_archives_go_by_age_and_then_the_least_recently_used_but_never_the_last(specs: Path) -> None:
    cache = runs_root() / "tiny" / "compile-cache"
    for name, days in (("new", 1), ("used", 5), ("large", 6), ("old", 50)):
        fill(cache / f"inductor-{name}.tar", 400)
        fill(cache / f"inductor-{name}.json", 5)
        age(cache / f"inductor-{name}.tar", days)
    retain(specs, compile_cache_gb=900 / 1e9)
    tidied = found(specs)
    assert gone(tidied, Kind.COMPILE_ARCHIVE) == ["inductor-large.tar", "inductor-old.tar"]
    tidy(specs, Mode.REMOVE)
    assert sorted(path.name for path in cache.iterdir()) == [
        "inductor-new.json", "inductor-new.tar", "inductor-used.json", "inductor-used.tar",
    ]  # fmt: skip
    age(cache, 100)
    retain(specs, compile_cache_gb=1 / 1e9)
    assert len(gone(found(specs), Kind.COMPILE_ARCHIVE)) == 1


def test_reading_an_archive_counts_as_use(specs: Path) -> None:
    cache = runs_root() / "tiny" / "compile-cache"
    for name in ("read", "unread", "newest"):
        fill(cache / f"inductor-{name}.tar", 10)
    age(cache, 50)
    os.utime(cache / "inductor-read.tar", (time.time(), time.time() - 50 * DAY_S))
    os.utime(cache / "inductor-newest.tar")
    assert gone(found(specs), Kind.COMPILE_ARCHIVE) == ["inductor-unread.tar"]


def test_logs_go_by_age_and_the_report_and_events_stay(specs: Path, tmp_path: Path) -> None:
    folder = make_run(0, days_old=40)
    logs = tmp_path / "airflow-logs"
    fill(logs / "dag_id=tiny" / "run_id=day-0" / "task_id=train" / "attempt=1.log", 10)
    fill(logs / "dag_id=other" / "run_id=x" / "attempt=1.log", 10)
    age(logs, 40)
    fill(logs / "dag_id=tiny" / "run_id=day-9" / "attempt=1.log", 10)
    tidy(specs, Mode.REMOVE, airflow_logs=logs)
    assert not folder.logs_dir.exists()
    assert list(folder.events_dir.iterdir())
    assert sorted(path.name for path in (logs / "dag_id=tiny").iterdir()) == [TRASH, "run_id=day-9"]
    assert (logs / "dag_id=other" / "run_id=x").exists()


def test_a_run_of_another_release_is_left_alone_and_said(specs: Path) -> None:
    folder = make_run(0, days_old=400)
    folder.spec_path.write_text("version: 99\n")
    age(folder.root, 400)
    tidied = found(specs)
    assert tidied.plan.expired == []
    assert "cannot be read, so it is left alone" in table([tidied])


def test_checkpoints_below_another_root_go_with_their_run(specs: Path, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    for number in range(4):
        make_run(number, days_old=200, root=str(root))
    tidy(specs, Mode.REMOVE)
    assert sorted(path.name for path in root.glob("tiny/day-*/anchor")) == ["anchor", "anchor"]
    assert sorted(path.parent.name for path in root.glob("tiny/day-*/anchor")) == ["day-2", "day-3"]
    assert not list(root.glob("tiny/day-*/checkpoints"))


def test_checkpoints_in_an_object_store_go_with_their_manifest_first(
    specs: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        make_run(number, days_old=200)
        folder = RunFolder.of("tiny", f"day-{number}")
        text = folder.spec_path.read_text()
        folder.spec_path.write_text(text.replace("checkpoint:\n", f"checkpoint:\n    root: {s3}/x\n"))
        place = CheckpointPlace.of(folder, load_run_spec(folder.spec_path).refresh)
        for path in (place.anchor, place.checkpoints / "step-10-abc"):
            for name in ("manifest.json", "part.bin"):
                (path / name).write_bytes(b"x" * 100)
        age(folder.root, 200)
    removed: list[str] = []
    real = housekeeping_removal.remove_file
    monkeypatch.setattr(housekeeping_removal, "remove_file", lambda path: (removed.append(str(path)), real(path)))
    tidied = tidy(specs, Mode.REMOVE)[0]
    assert tidied.failures == []
    assert removed[:2] == [
        f"{s3}/x/tiny/day-0/checkpoints/step-10-abc/manifest.json",
        f"{s3}/x/tiny/day-0/anchor/manifest.json",
    ]
    assert sum(item.bytes for item in tidied.removed.items if item.kind is Kind.ANCHOR) == 200
    left = located(f"{s3}/x/tiny")
    assert names_in(left) == ["day-1", "day-2"]
    assert names_in(left / "day-1") == ["anchor"]


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_of(folder: RunFolder, *command: str) -> JobFolder:
    launcher = LocalLauncher()
    key = JobKey(refresh="tiny", run=folder.run, task="train")
    handle = launcher.submit(JobRequest(key=key, command=command, run_folder=folder, grace_s=1.0))
    return JobFolder.of(handle.id)


def test_a_job_s_scratch_goes_by_age_and_its_records_only_with_the_run_folder(specs: Path) -> None:
    folder = make_run(0, days_old=40, anchor=False)
    job = job_of(folder, "platform")
    wait_until(lambda: observe(job).terminal, "the job does not end")
    age(job.root, 40)
    age(folder.root, 40)
    tidy(specs, Mode.REMOVE)
    assert observe(job).state is JobState.SUCCEEDED  # a cleared task still learns that it is done
    assert not job.logs_dir.exists()
    age(folder.root, 100)
    age(job.root, 40)
    tidied = tidy(specs, Mode.REMOVE)[0]
    assert {item.kind for item in tidied.removed.items} == {Kind.RUN, Kind.JOB}
    assert not folder.root.exists()
    assert not list(all_jobs())


def test_a_run_with_a_job_that_has_not_ended_is_not_touched(specs: Path) -> None:
    folder = make_run(0, days_old=400, anchor=False)
    job = job_of(folder, "http.server", "0")
    wait_until(lambda: observe(job).state is JobState.RUNNING, "the job does not start")
    age(folder.root, 400)
    tidied = tidy(specs, Mode.REMOVE)[0]
    assert tidied.removed.items == []
    assert "has not ended" in table([tidied])
    assert folder.spec_path.exists()


# -- active runs ------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_in_airflow_is_not_touched(specs: Path) -> None:
    make_run(0, days_old=400, anchor=False)
    asked = []

    def is_running(dag_id: str, run_id: str) -> bool:
        asked.append((dag_id, run_id))
        return True

    assert gone(found(specs, is_running=is_running), Kind.RUN) == []
    assert asked == [("tiny", "day-0")]


def test_the_run_that_holds_the_chain_is_not_touched(specs: Path) -> None:
    make_run(0, days_old=400, anchor=False)
    ChainLock("tiny").take(Holder(dag_id="tiny", run_id="day-0", run="day-0"), lambda *_: True)
    assert gone(found(specs), Kind.RUN) == []
    assert gone(found(specs, is_running=lambda *_: False), Kind.RUN) == ["day-0"]  # it died with it


def test_a_run_that_was_written_to_within_a_day_is_not_touched(specs: Path) -> None:
    folder = make_run(0, days_old=400)
    fill(folder.events_dir / "trainer-a1-r0" / "0.jsonl", 1)
    assert gone(found(specs), Kind.CHECKPOINTS) == []


def test_a_run_that_is_cleared_after_the_survey_is_spared(specs: Path) -> None:
    folder = make_run(0, days_old=400, anchor=False)
    planned = found(specs).plan.expired
    objections = Objections("tiny", Activity("tiny", JobIndex(), None), since_s=time.time() - 1)
    assert objections.to(planned[0]) == ""
    fill(folder.events_dir / "airflow-train-t2-7" / "0.jsonl", 1)
    os.utime(folder.events_dir / "airflow-train-t2-7" / "0.jsonl", (time.time() + 5, time.time() + 5))
    assert objections.to(planned[0]) == "its run has been written to since"


def test_an_anchor_that_a_new_run_started_from_after_the_survey_is_spared(specs: Path) -> None:
    for number in range(3):
        make_run(number, days_old=10)
    register("day-0", "day-1", "day-2", live=("day-2",))
    planned = [item for item in found(specs).plan.expired if item.kind is Kind.ANCHOR]
    objections = Objections("tiny", Activity("tiny", JobIndex(), None), since_s=time.time())
    make_run(9, days_old=0, anchor=False, start="day-0")
    assert [item.run for item in planned] == ["day-0"]
    assert objections.to(planned[0]) == "run day-9 has started from it"


# -- removal ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_and_the_spec_decides_on_schedule(specs: Path, home: Path) -> None:
    make_run(0, days_old=400, anchor=False)
    before = files_of(home)
    tidied = tidy(specs, Mode.LIST)[0]
    assert files_of(home) == before
    assert "tiny: 1 would be removed (dry run)" in table([tidied])
    tidy(specs, Mode.AS_IN_SPEC)
    assert files_of(home) == before
    retain(specs, apply=True)
    assert "tiny: 1 removed" in table(tidy(specs, Mode.AS_IN_SPEC))
    assert not RunFolder.of("tiny", "day-0").root.exists()


def test_a_second_time_there_is_nothing_left_to_remove(specs: Path) -> None:
    for number in range(5):
        make_run(number, days_old=200)
    register("day-0", "day-1", "day-2", "day-3", live=("day-1", "day-2", "day-3"))
    assert tidy(specs, Mode.REMOVE)[0].removed.items
    again = tidy(specs, Mode.REMOVE)[0]
    assert (again.plan.expired, again.failures) == ([], [])


def test_a_thing_is_out_of_sight_before_it_is_deleted_and_what_is_left_of_it_goes_next_time(
    specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(0, days_old=400, anchor=False)
    seen = []

    def killed(path: Path) -> None:
        seen.append(path)
        (path / "spec.yaml").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(housekeeping_removal.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            tidy(specs, Mode.REMOVE)
    assert not folder.root.exists()
    assert seen[0].parent == runs_root() / "tiny" / TRASH
    tidied = tidy(specs, Mode.REMOVE)[0]
    assert [item.kind for item in tidied.removed.items] == [Kind.LEFTOVER]
    assert not list((runs_root() / "tiny" / TRASH).iterdir())


def test_one_failure_stops_no_other_and_is_told(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        make_run(number, days_old=400, anchor=False)
    real = shutil.rmtree

    def stuck(path: Path, *args: Any, **kwargs: Any) -> None:
        if "day-1" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *args, **kwargs)

    monkeypatch.setattr(housekeeping_removal.shutil, "rmtree", stuck)
    tidied = tidy(specs, Mode.REMOVE)[0]
    assert sorted(item.run for item in tidied.removed.items) == ["day-0", "day-2"]
    assert len(tidied.failures) == 1
    assert "day-1: PermissionError" in tidied.failures[0]


def test_a_refresh_whose_spec_is_broken_does_not_stop_the_others(specs: Path) -> None:
    make_run(0, days_old=400, anchor=False)
    (specs / "broken.yaml").write_text("version: 1\nname: broken\n")
    done = tidy(specs, Mode.REMOVE)
    assert [each.refresh for each in done] == ["broken", "tiny", "(this machine)"]
    assert "broken.yaml" in done[0].failures[0]
    assert len(done[1].removed.items) == 1


def test_a_link_is_removed_and_not_what_it_leads_to(specs: Path, tmp_path: Path) -> None:
    folder = make_run(0, days_old=400, anchor=False)
    precious = tmp_path / "precious"
    fill(precious / "file", 10)
    (folder.root / "link").symlink_to(precious)
    age(folder.root, 400)
    os.utime(folder.root / "link", (0, 0), follow_symlinks=False)
    tidy(specs, Mode.REMOVE)
    assert not folder.root.exists()
    assert (precious / "file").exists()


def test_the_command_lists_and_removes(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(0, days_old=400, anchor=False)
    assert main(["--dry-run", "--specs", str(specs)]) == 0
    listed = capsys.readouterr().out
    assert "runs/tiny/day-0: last written 400 days ago (retention.run_days 90)" in listed
    assert RunFolder.of("tiny", "day-0").root.exists()
    assert main(["--apply", "--specs", str(specs), "--refresh", "tiny"]) == 0
    assert not RunFolder.of("tiny", "day-0").root.exists()
    assert main(["--apply", "--specs", str(specs), "--refresh", "tinny"]) == 1
    assert "no refresh named 'tinny'" in capsys.readouterr().err


def task_context(run_type: str, **params: Any) -> Any:
    return {"dag_run": SimpleNamespace(run_type=run_type), "params": params}


def test_by_hand_the_task_lists_unless_told_otherwise_and_on_schedule_the_spec_decides(
    specs: Path, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping_operator, "goes_on_in_airflow", lambda dag_id, run_id: False)
    folder = make_run(0, days_old=400, anchor=False)
    task = HousekeepingOperator(task_id="tidy", specs=str(specs))
    for context in (task_context("manual"), task_context("manual", dry_run=True), task_context("scheduled")):
        assert task.execute(context)["tiny"]["items"] == 1
        assert folder.root.exists()
    retain(specs, apply=True)
    told = task.execute(task_context("scheduled", dry_run=True))["tiny"]
    assert (told["mode"], told["items"]) == ("remove", 1)
    assert told["bytes"] > 3000
    assert not folder.root.exists()


def test_the_task_is_red_when_something_could_not_be_removed(
    specs: Path, outside_airflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping_operator, "goes_on_in_airflow", lambda dag_id, run_id: False)
    (specs / "broken.yaml").write_text("version: 1\nname: broken\n")
    folder = make_run(0, days_old=400, anchor=False)
    task = HousekeepingOperator(task_id="tidy", specs=str(specs))
    with pytest.raises(HousekeepingError, match=r"1 failed, the rest is done: broken: .*broken\.yaml"):
        task.execute(task_context("manual", dry_run=False))
    assert not folder.root.exists()


def test_a_refresh_that_has_never_run_has_nothing_to_tidy(specs: Path) -> None:
    assert tidy(specs, Mode.REMOVE)[0].plan.expired == []


def test_the_defaults_remove_nothing_by_themselves() -> None:
    spec: RefreshSpec = load_spec(SPEC_PATH)
    assert spec.retention == Retention()
    assert not spec.retention.apply
