"""What the pages say: of a run that trains, that ended, that failed its check, and of all refreshes together."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from ett_reports.events import Point
from tests.ett_reports.story import Story
from tests.plugins.conftest import wait_until
from tests.plugins.ui.site import DAY, TASKS, Site, begun, publish, words_of
from trainer.run_folder import RunFolder

HOSTILE = "</section><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp"


def test_an_ended_run_shows_its_report_and_does_not_move(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    answer = site.get("run", dag_id="shop", run_id="one")
    assert answer.status_code == 200
    shown = words_of(answer.text)
    assert "71.4 %" in shown  # 100 s of 140
    assert "Cost the most PT2 compilation" in shown
    assert "PT2 compilation took 30.0 s, over its budget of 5.0 s Owner: compilers (#pt2)" in shown
    assert 'id="breach-pt2_compile"' in answer.text
    assert "data-figures" not in answer.text
    assert [task for task in TASKS if f"task_id={task}" not in answer.text] == []


def test_a_run_whose_days_before_it_were_trained_again_says_that_it_is_stale(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    assert "Stale" not in words_of(site.get("run", dag_id="shop", run_id="one").text)
    mark = {"version": 1, "built_on": ["zero"], "replaced_by": "zero.again2<b>", "at_unix_ns": 1}
    (RunFolder.of("shop", "one").root / "stale.json").write_text(json.dumps(mark))
    page = site.get("run", dag_id="shop", run_id="one").text
    assert "Stale: this run was built on zero, whose days run zero.again2<b> has trained again" in words_of(page)
    assert "again2<b>" not in page


def test_a_run_that_trains_moves_without_its_page_being_loaded_again(site: Site) -> None:
    site.refresh("shop")
    _, trainer = site.going("shop", "one")
    page = site.get("run", dag_id="shop", run_id="one").text
    assert 'data-figures="figures?dag_id=shop&amp;run_id=one"' in page
    assert "The report below is as of" in words_of(page)
    before = site.get("figures", dag_id="shop", run_id="one")
    assert before.headers["ETT-Run"] == "running"
    assert "200 of 1 000 samples, 20.0%" in words_of(before.text)
    trainer.step(cursor=700)
    trainer.point(Point.METRICS, scope="train", auc=0.7)  # writes the open window out

    def moved() -> bool:
        seen = words_of(site.get("figures", dag_id="shop", run_id="one").text)
        return "Training , attempt 1" in seen and "700 of 1 000 samples, 70.0%" in seen

    wait_until(moved, "the figures do not move")


def test_a_run_that_has_not_begun_says_so_and_what_to_look_at(site: Site) -> None:
    site.refresh("shop")
    site.run("shop", "one", state="queued", tasks=dict.fromkeys(TASKS, ""))
    page = site.get("run", dag_id="shop", run_id="one").text
    assert "data-without-job" in page.partition("<body>")[2]  # so that its place is taken once there is a job
    shown = words_of(page)
    assert "This run has not begun" in shown
    assert "the DAG is paused, or no scheduler is running" in shown
    moving = site.get("figures", dag_id="shop", run_id="one")
    assert moving.headers["ETT-Run"] == "running"
    assert "Waiting for the first task" in words_of(moving.text)
    share = words_of(site.get("task", dag_id="shop", run_id="one", task_id="train").text)
    assert "This task has left no stamp yet" in share


def test_a_run_that_ended_without_events_says_what_to_do(site: Site) -> None:
    site.refresh("shop")
    site.run("shop", "one", state="failed", tasks={**dict.fromkeys(TASKS, "upstream_failed"), "check_schema": "failed"})
    shown = words_of(site.get("run", dag_id="shop", run_id="one").text)
    assert "This run left no events" in shown
    assert "If check_schema is red, its log says" in shown


def test_a_run_that_failed_its_check_shows_the_findings_and_the_task_s_message(site: Site) -> None:
    site.refresh("shop")
    folder = site.run("shop", "one", state="failed", tasks={**dict.fromkeys(TASKS, ""), "check_schema": "failed"})
    begun(folder, DAY)
    finding = {
        "file": "day=2026-11-27/part-0.parquet",
        "column": HOSTILE,
        "rule": "column_missing",
        "expected": "float32",
        "observed": "no such column",
        "layer": "footer",
        "action": "write the column again",
    }
    report = {"passed": False, "message": "shop: 1 findings; nothing was trained on\n- more", "findings": [finding]}
    folder.schema_report_path.write_text(json.dumps(report))
    story = Story(folder.events_dir, job=folder.job)
    operator = story.process("airflow", "airflow-check_schema-t1-1", start=2, host="airflow")  # type: ignore[arg-type]
    operator.point("task_code_start", task="check_schema", try_number=1)
    message = f"check_schema: bad data {HOSTILE}"
    operator.at(9).point("task_end", task="check_schema", try_number=1, outcome="failed", message=message)
    page = site.get("run", dag_id="shop", run_id="one").text
    shown = words_of(page)
    assert "The data did not pass its check, so nothing was trained" in shown
    assert "column_missing float32 no such column write the column again" in shown
    assert "check_schema: bad data" in shown
    assert "clear the task check_schema" in shown
    assert "alert(1)" in shown
    assert HOSTILE not in page
    assert "<img" not in page
    assert "\u202e" not in page


def test_a_task_s_share_says_where_its_seconds_went_and_whose_it_is(site: Site) -> None:
    site.refresh("shop")
    folder = site.trained("shop", "one")
    (folder.report_dir / "ett.json").unlink()  # the log is the truth; this report was written without the refresh
    check = words_of(site.get("task", dag_id="shop", run_id="one", task_id="check_schema").text)
    assert "7.0 s run: its code in a worker" in check
    assert "Data check" in check
    assert "at most 60 s features" in check
    train = words_of(site.get("task", dag_id="shop", run_id="one", task_id="train").text)
    assert "PT2 compilation 30.0 s 30.0 s BREACHED at most 5 s compilers #pt2" in train
    measure = words_of(site.get("task", dag_id="shop", run_id="one", task_id="ett").text)
    assert "This task has left no stamp yet" in measure
    assert site.get("task", dag_id="shop", run_id="one", task_id="tain").status_code == 404


def test_two_runs_of_the_same_work_are_compared_and_their_margins_said(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "slow", compile_s=50)
    site.trained("shop", "fast", compile_s=30)
    choice = site.get("compare", dag_id="shop", run_id="fast").text
    assert '<option value="slow">' in choice
    assert '<option value="fast">' not in choice
    shown = words_of(site.get("compare", dag_id="shop", run_id="fast", baseline="slow").text)
    assert "The same work" in shown
    assert "No setting of the two runs differs" in shown
    assert "PT2 compilation 50.0 s 31.2% 30.0 s 21.4% 20.0 s less" in shown
    assert "ETT changed by +8.9 points" in shown


def test_different_work_is_marked_before_any_figure(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "monday", day=DAY - timedelta(days=1))
    folder = site.trained("shop", "tuesday")
    spec = folder.spec_path.read_text()
    folder.spec_path.write_text(spec.replace("dense_learning_rate: 0.002", "dense_learning_rate: 0.005"))
    (folder.report_dir / "ett.json").unlink()  # its figures then come from the log, its settings from the spec
    shown = words_of(site.get("compare", dag_id="shop", run_id="tuesday", baseline="monday").text)
    assert shown.index("Different work") < shown.index("data window 2026-11-26 to 2026-11-27") < shown.index("By comp")
    assert "training.dense_learning_rate 0.002 0.005" in shown
    assert "ETT changed by" not in shown
    assert " less" not in shown.partition("By component")[2].partition("Level 2")[2].partition("on it.")[2]


def test_a_run_without_a_job_is_not_compared(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    site.run("shop", "red", state="failed")
    shown = words_of(site.get("compare", dag_id="shop", run_id="one", baseline="red").text)
    assert "Nothing to compare: no training job of red was recorded" in shown


def test_the_list_shows_share_trend_freshness_and_breaches_with_owner_and_link(site: Site) -> None:
    site.refresh("shop", description="Will they buy it?")
    site.refresh("untried")
    site.refresh("other-dag", tag="etl")
    for name, compile_s in (("one", 100.0), ("two", 30.0)):
        site.trained("shop", name, compile_s=compile_s)
    site.going("shop", "three")
    today = datetime.now(UTC).date()
    publish("shop", 9, "one", (today - timedelta(days=30)).isoformat())
    publish("shop", 10, "two", (today - timedelta(days=2)).isoformat())
    page = site.get("refreshes").text
    shown = words_of(page)
    assert "Will they buy it?" in shown
    assert "running three" in shown
    assert "71.4% run before" in shown
    assert "ETT of the last 2 runs: 47.6%, 71.4%" in shown
    assert re.search(r"[23] d \d\d h old data up to", shown)
    assert "PT2 compilation 30.0 s of 5.0 s compilers #pt2" in shown
    assert 'href="run?dag_id=shop&amp;run_id=two#breach-pt2_compile"' in page
    assert "untried" in shown
    assert "No run yet. Open the DAG untried and press Trigger" in shown
    assert "nothing published yet" in shown
    assert "other-dag" not in shown


def test_the_list_without_a_refresh_says_how_to_add_one(site: Site) -> None:
    shown = words_of(site.get("refreshes").text)
    assert "No refreshes to show" in shown
    assert "A refresh is a file in dags/refreshes/" in shown


def test_the_list_is_searched_and_paged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from ett_airflow.ui import pages

    monkeypatch.setattr(pages, "PER_PAGE", 2)
    for name in ("a1", "a2", "a3", "b%1"):
        site.refresh(name)
    assert "Page 1 of 2" in words_of(site.get("refreshes").text)
    second = words_of(site.get("refreshes", page=2).text)
    assert "a3" in second
    assert "a1" not in second
    found = words_of(site.get("refreshes", containing="%").text)
    assert "b%1" in found
    assert "a1" not in found
    assert "None of that name" in words_of(site.get("refreshes", containing="<b>").text)
    assert site.get("refreshes", page=0).status_code == 404


def test_a_report_that_was_overtaken_by_its_job_is_made_anew(site: Site) -> None:
    """A task was cleared after the report: the log goes on, and the page follows the log."""
    site.refresh("shop")
    folder = site.trained("shop", "one")
    assert "71.4 %" in words_of(site.get("run", dag_id="shop", run_id="one").text)
    stale = json.loads((folder.report_dir / "ett.json").read_text())
    stale["title"] = "an old title"
    (folder.report_dir / "ett.json").write_text(json.dumps(stale))
    assert "an old title" in words_of(site.get("run", dag_id="shop", run_id="one").text)
    story = Story(folder.events_dir / "..", job=folder.job)
    story.launcher.recorder.close()
    more = Story(folder.events_dir, job=folder.job)
    more.process("launcher", "agent-2", start=200).point("submitted", attempt=2, devices=1)  # type: ignore[arg-type]
    more.launcher.recorder.close()
    assert "an old title" not in words_of(site.get("run", dag_id="shop", run_id="one").text)


@pytest.mark.parametrize("path", ["run", "task", "compare", "refreshes", "missing"])
def test_scripts_and_styles_are_let_in_by_a_nonce_of_this_answer_only(site: Site, path: str) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    site.trained("shop", "two")
    query = {"dag_id": "shop", "run_id": "one", "task_id": "train", "baseline": "two"}
    nonces = set()
    for _ in range(2):
        answer = site.get(path, **query)
        policy = answer.headers["Content-Security-Policy"]
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
        nonces.add(nonce)
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none';")
        tags = re.findall(r"<(?:script|style)\b[^>]*>", answer.text)
        assert tags
        assert set(tags) <= {f'<script nonce="{nonce}">', f'<style nonce="{nonce}">'}
        body = answer.text.partition("<body>")[2]
        assert not re.findall(r"<[^>]+\s(?:on\w+|style)=", body)
        assert "target=" not in body
        assert answer.headers["Cache-Control"] == "no-store"
    assert len(nonces) == 2


def test_a_piece_of_a_page_may_load_and_run_nothing_by_itself(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    for path in ("figures", "report"):
        answer = site.get(path, dag_id="shop", run_id="one")
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "<script" not in answer.text


def test_dark_is_what_the_user_of_airflow_chose_else_what_the_system_prefers() -> None:
    from ett_airflow.ui.page import style, themed

    css = str(style())
    assert ":root:not([data-theme=light])" in css
    assert css.count(":root[data-theme=dark] {") >= 2
    assert "@media (prefers-color-scheme: dark) {\n  :root {" not in css
    with pytest.raises(ValueError, match="no dark colours"):
        themed("body {}")
