"""Alerts: to the owner, with figure and suspect, once while it stays broken and once when it mends, whatever dies."""

from __future__ import annotations

import json
import multiprocessing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from ett_airflow import alert_state, notifiers
from ett_airflow.alert_failure import FailureClass, RedRun
from ett_airflow.alert_message import Alert, AlertKind
from ett_airflow.alert_state import read_state
from ett_airflow.alerts import AlertedRun, alert_late, alert_red, alert_run

from ett_reports.events import L1, Cause, Phase, Provenance
from ett_reports.report import Failure, JobReport, Straggler
from ett_reports.slo import Owned, Snapshot, judge, policy_from
from tests.ett_reports.render.sample_reports import S, job_report
from tests.plugins.conftest import SPEC_PATH
from trainer.spec import Alerts, Notifier, Owner, RefreshSpec, ServiceLevel, SpecError, load_spec, with_overrides
from trainer.spec import Owned as SpecOwned

MODULES = Path(__file__).parent / "modules"
RED = RedRun(task="train", failure=FailureClass.HANG, message="train: attempt 3 failed, cause hang: no step for 300 s")


@pytest.fixture(autouse=True)
def importable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODULES))


@pytest.fixture
def told(home: Path) -> Path:
    return home / "told.jsonl"


def messages(path: Path) -> list[str]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def recording(path: Path, **entry: Any) -> Notifier:
    kind = entry.pop("kind", "RecordingNotifier")
    teams = entry.pop("teams", [])
    return Notifier(notifier=f"recording_notifier.{kind}", arguments={"path": str(path), **entry}, teams=teams)


def spec(*entries: Notifier, fallback: Owner | None = None, **levels: ServiceLevel) -> RefreshSpec:
    """Refresh `tiny` with these notifiers and service levels; scheduling and data have owners."""
    return load_spec(SPEC_PATH).model_copy(
        update={
            "alerts": Alerts(notifiers=list(entries), fallback=fallback),
            "service_levels": {SpecOwned(name): level for name, level in levels.items()},
        }
    )


def job(init_s: float, queue_s: float = 5.0, **changes: Any) -> JobReport:
    return job_report(
        [
            (L1.TTS, Phase.QUEUE_WAIT, queue_s, 1),
            (L1.TTS, Phase.LAUNCHER_INIT, init_s, 1),
            (L1.PRODUCTIVE, Phase.STEP, 60.0, 1),
        ],
        **changes,
    )


def end(
    refresh: RefreshSpec, report: JobReport, run_id: str = "monday", day: int = 2, red: RedRun | None = None
) -> None:
    """The end of a run: its report is judged by the spec's levels, and its owners are told."""
    run = AlertedRun(refresh=refresh, run_id=run_id, window_end=date(2026, 11, day))
    owners = {str(part): owner for part, owner in refresh.owners.items()}
    levels = {str(part): level for part, level in refresh.service_levels.items()}
    judgement = judge(Snapshot(job=report, policy=policy_from(owners, levels)))
    alert_run(run, {}, red=red, judgement=judgement, job=report)


SLOW_START = ServiceLevel(seconds=30.0)


def test_a_broken_level_is_told_once_while_it_stays_broken_and_once_when_it_mends(told: Path) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    for number, init_s in enumerate((75.2, 80.0, 90.0, 20.0, 10.0, 40.0), start=2):
        end(refresh, job(init_s), f"day-{number}", number)
    assert messages(told) == [
        "tiny: Trainer initialization broke its service level: 75.2 s, limit at most 30.0 s",
        "tiny: Trainer initialization keeps its service level again: 20.0 s, limit at most 30.0 s",
        "tiny: Trainer initialization broke its service level: 40.0 s, limit at most 30.0 s",
    ]


def test_an_alert_has_figure_limit_owner_link_and_first_suspect(told: Path) -> None:
    facts = ("contact", "figure", "limit", "suspect", "run_url")
    text = "|".join(f"{{{{ alert.{fact} }}}}" for fact in facts)
    refresh = spec(recording(told, text=text), scheduling=ServiceLevel(share=0.1))
    end(refresh, job(10.0, queue_s=30.0), "manual__2026-11-28T03:00:00+00:00")
    owner, figure, limit, suspect, link = messages(told)[0].split("|")
    assert owner == "capacity@example.com"
    assert (figure, limit) == ("30.0% of wall time (30.0 s)", "at most 10%")
    assert suspect.startswith("Queue wait: 30.0 s of 30.0 s. The job stood in the scheduler's queue.")
    assert link == "http://localhost:8080/dags/tiny/runs/manual__2026-11-28T03%3A00%3A00%2B00%3A00"


def test_the_suspect_names_the_failure_behind_recoveries_and_the_straggler(told: Path) -> None:
    failure = Failure(
        attempt=1, cause=Cause.INFRASTRUCTURE, message="rank 1 was killed by SIGKILL", start_ns=0, failure_ns=0,
        detected_ns=0, end_ns=50 * S, lost_ns=0, detect_ns=0, ttr_ns=50 * S, recovered=True, replayed_samples=0,
        lost_not_replayed_samples=0, provenance=Provenance.MEASURED,
    )  # fmt: skip
    straggler = Straggler(
        attempt=2, phase=Phase.LAUNCHER_INIT, ranks=2, median_ns=9 * S, max_ns=40 * S, slowest_rank=1, slowest_host="n7"
    )
    pieces: list[Any] = [(L1.RECOVERY, Phase.LAUNCHER_INIT, 50.0, 2), (L1.PRODUCTIVE, Phase.STEP, 60.0, 2)]
    report = job_report(pieces, failures=(failure,), stragglers=(straggler,))
    end(spec(recording(told, text="{{ alert.suspect }}"), trainer_init=SLOW_START), report)
    suspect = messages(told)[0]
    assert "50.0 s of it in recoveries; the costliest after attempt 1 ended by infrastructure: rank 1 was" in suspect
    assert "Rank 1 on n7 was 31.0 s slower than the median rank." in suspect


def test_a_missed_goal_suspects_the_costliest_component_and_names_its_owner(told: Path) -> None:
    refresh = spec(
        recording(told, text="{{ alert.limit }}: {{ alert.suspect }}"), effective_training=ServiceLevel(share=0.9)
    )
    end(refresh, job(1.0, queue_s=50.0))
    assert messages(told)[0].startswith(
        "at least 90%: Scheduling cost the most, owned by capacity (capacity@example.com)"
    )


def test_a_level_that_cannot_be_judged_neither_breaks_nor_mends(told: Path) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    end(refresh, job(75.0), "first", 2)
    end(refresh, job(10.0, sources=()), "blind", 3)  # the trainer's events never arrived: its silence is not health
    assert len(messages(told)) == 1
    assert [alert.subject for alert in read_state(Path(told.parent / "runs" / "tiny")).troubles()] == ["trainer_init"]


def test_a_level_that_was_taken_out_of_the_spec_ends_without_a_word(told: Path) -> None:
    end(spec(recording(told), trainer_init=SLOW_START), job(75.0), "first", 2)
    end(spec(recording(told)), job(75.0), "second", 3)
    end(spec(recording(told), trainer_init=SLOW_START), job(75.0), "third", 4)
    assert len(messages(told)) == 2  # broken anew: nobody had been waiting for its end


def test_a_notifier_that_fails_costs_nothing_and_is_tried_again(told: Path, caplog: pytest.LogCaptureFixture) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    down = told.parent / "down"
    down.touch()
    end(refresh, job(75.0), "first", 2)
    assert "ConnectionRefusedError: the chat server is down" in caplog.text
    down.unlink()
    end(refresh, job(76.0), "second", 3)
    assert messages(told) == ["tiny: Trainer initialization broke its service level: 76.0 s, limit at most 30.0 s"]


def test_what_mended_before_a_notifier_could_be_told_is_never_told(told: Path) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    (told.parent / "down").touch()
    end(refresh, job(75.0), "first", 2)
    (told.parent / "down").unlink()
    end(refresh, job(5.0), "second", 3)
    assert messages(told) == []


def test_one_notifier_s_failure_does_not_keep_another_from_being_told_or_told_twice(told: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    refresh = spec(recording(told), recording(other / "told.jsonl"), trainer_init=SLOW_START)
    (told.parent / "down").touch()
    end(refresh, job(75.0), "first", 2)
    (told.parent / "down").unlink()
    end(refresh, job(75.0), "second", 3)
    assert len(messages(told)) == len(messages(other / "told.jsonl")) == 1


def test_a_notifier_goes_to_its_teams_only_and_what_nobody_owns_to_the_fallback(told: Path) -> None:
    capacity, rest = told.with_name("capacity"), told.with_name("rest")
    refresh = spec(
        recording(capacity, teams=["capacity"]),
        recording(rest, teams=["on-call"], text="{{ alert.contact }}"),
        fallback=Owner(team="on-call", contact="on-call@example.com"),
        trainer_init=SLOW_START,
        scheduling=ServiceLevel(seconds=1.0),
    )
    end(refresh, job(75.0))
    assert messages(capacity) == ["tiny: Scheduling broke its service level: 5.0 s, limit at most 1.0 s"]
    assert messages(rest) == ["on-call@example.com"]


def test_a_changed_notifier_is_told_what_is_broken_already(told: Path) -> None:
    end(spec(recording(told), trainer_init=SLOW_START), job(75.0), "first", 2)
    end(spec(recording(told, text="by mail: {{ alert.kind }}"), trainer_init=SLOW_START), job(75.0), "second", 3)
    assert messages(told)[1:] == ["by mail: broken"]


def test_a_notifier_that_can_only_be_awaited_is_awaited(told: Path) -> None:
    end(spec(recording(told, kind="AwaitedNotifier"), trainer_init=SLOW_START), job(75.0))
    assert len(messages(told)) == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("recording_notifier.NoNotifier", "is no notifier: name a subclass of airflow.sdk.BaseNotifier"),
        ("recording_notifier.Missing", "AttributeError"),
        ("no_such_module.Notifier", "ModuleNotFoundError"),
    ],
)
def test_a_class_path_that_is_no_notifier_is_named_in_the_log(
    told: Path, caplog: pytest.LogCaptureFixture, path: str, said: str
) -> None:
    end(spec(Notifier(notifier=path), trainer_init=SLOW_START), job(75.0))
    assert path in caplog.text
    assert said in caplog.text


def test_a_notifier_that_hangs_does_not_hold_up_the_report(
    told: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "PATIENCE_S", 0.1)
    end(spec(recording(told, seconds=2.0), trainer_init=SLOW_START), job(75.0))
    assert "gave no answer within" in caplog.text


def test_what_a_job_wrote_is_a_value_in_templates_never_a_template(told: Path) -> None:
    message = "{{ 7 * 7 }}{% raw %} <script>alert(1)</script>\r\nBcc: everyone@example.com \u202e"
    red = RedRun(task="train", failure=FailureClass.APPLICATION, message=message)
    text = "{{ alert.text }}\n{{ alert.html }}"
    alert_red(AlertedRun(refresh=spec(recording(told, text=text)), run_id="x", window_end=date(2026, 11, 2)), {}, red)
    sent = messages(told)[0]
    assert "{{ 7 * 7 }}" in sent
    plain, _, markup = sent.partition("<p>")
    assert "<script>" in plain  # plain text is plain
    assert "<script>" not in markup
    assert "\r" not in sent
    assert "\u202e" not in sent
    assert not [line for line in sent.splitlines() if line.startswith("Bcc:")]


def test_a_red_run_is_told_with_its_class_and_not_again_while_it_fails_the_same_way(told: Path) -> None:
    refresh = spec(recording(told))
    end(refresh, job(1.0), "day-2", 2, red=RED)
    end(refresh, job(1.0), "day-2", 2, red=RED)  # cleared, and failed again
    end(refresh, job(1.0), "day-3", 3, red=RED)
    end(refresh, job(1.0), "day-4", 4, red=RedRun(task="publish", failure=FailureClass.APPLICATION, message="AUC"))
    end(refresh, job(1.0), "day-5", 5)
    end(refresh, job(1.0), "day-6", 6)
    assert messages(told) == [
        "tiny: the refresh failed: train, hang",
        "tiny: the refresh failed: publish, application",
        "tiny: the refresh succeeds again",
    ]


def test_a_later_day_that_succeeds_says_that_the_failed_one_is_still_untrained(told: Path) -> None:
    refresh = spec(recording(told, text="{{ alert.text }}"))
    end(refresh, job(1.0), "day-2", 2, red=RED)
    end(refresh, job(1.0), "day-3", 3)
    assert "Still to do: Run day-2 (data up to 2026-11-02) is still red: clear it, or backfill" in messages(told)[1]


def test_an_earlier_day_trained_again_neither_mends_nor_breaks_a_later_one_s_levels(told: Path) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    end(refresh, job(75.0), "day-9", 9)
    end(refresh, job(1.0), "day-2", 2)
    end(refresh, job(75.0), "day-9", 9)
    assert len(messages(told)) == 1


def test_an_earlier_day_that_fails_is_a_trouble_of_its_own_until_it_is_green(told: Path) -> None:
    from trainer.run_folder import RunFolder

    refresh = spec(recording(told))
    RunFolder.of("tiny", "day-2").create()
    end(refresh, job(1.0), "day-9", 9)
    end(refresh, job(1.0), "day-2", 2, red=RED)
    end(refresh, job(1.0), "day-2", 2, red=RED)
    end(refresh, job(1.0), "day-2", 2)
    assert messages(told) == ["tiny: the refresh failed: train, hang", "tiny: the refresh succeeds again"]


def test_the_dag_s_own_callback_does_not_repeat_what_the_report_told(told: Path) -> None:
    refresh = spec(recording(told))
    end(refresh, job(1.0), "day-2", 2, red=RED)
    run = AlertedRun(refresh=refresh, run_id="day-2", window_end=date(2026, 11, 2))
    alert_red(run, {}, RedRun(task="report", failure=FailureClass.CONTROL_PLANE, message="failed in train"))
    assert len(messages(told)) == 1


def test_a_passed_deadline_is_told_once_and_ends_with_a_green_run_of_that_window_or_a_later_one(told: Path) -> None:
    refresh = spec(recording(told))
    late = AlertedRun(refresh=refresh, run_id="day-5", window_end=date(2026, 11, 5))
    for _ in range(2):
        alert_late(late, {}, figure="data up to 2026-11-05 is not live after 6 h", limit="6 h")
    end(refresh, job(1.0), "day-4", 4)
    assert len(messages(told)) == 1
    end(refresh, job(1.0), "day-5", 5)
    assert messages(told) == [
        "tiny: no fresh model: data up to 2026-11-05 is not live after 6 h",
        "tiny: the model is fresh again",
    ]


def test_two_runs_that_end_together_tell_once(told: Path) -> None:
    refresh = spec(recording(told, seconds=0.3), trainer_init=SLOW_START)
    fork = multiprocessing.get_context("fork")
    ending = [fork.Process(target=end, args=(refresh, job(75.0), f"run-{number}", 2)) for number in range(4)]
    for process in ending:
        process.start()
    for process in ending:
        process.join()
    assert [process.exitcode for process in ending] == [0] * 4
    assert len(messages(told)) == 1


def test_a_state_file_that_cannot_be_read_costs_a_repetition_not_silence(told: Path) -> None:
    refresh = spec(recording(told), trainer_init=SLOW_START)
    for text in (None, "{", '{"version": 99}', '{"version": 1, "standing": {"a": 1}, "told": {}}'):
        if text is not None:
            (told.parent / "runs" / "tiny" / alert_state.STATE_NAME).write_text(text)
        end(refresh, job(75.0))
    assert len(messages(told)) == 4


def test_without_notifiers_the_state_is_kept_all_the_same(told: Path) -> None:
    end(spec(trainer_init=SLOW_START), job(75.0))
    root = told.parent / "runs" / "tiny"
    assert [alert.title for alert in read_state(root).troubles()] == ["Trainer initialization"]
    assert (root / alert_state.STATE_NAME).stat().st_mode & 0o077 == 0


def test_an_alert_survives_its_file() -> None:
    alert = Alert(
        kind=AlertKind.BROKEN, refresh="tiny", run="r", window_end="2026-11-02", subject=Owned.DATA, title="Data check"
    )
    assert Alert.from_dict(json.loads(json.dumps(alert.to_dict()))) == alert


def test_notifiers_are_code_and_cannot_be_chosen_by_a_run() -> None:
    with pytest.raises(SpecError, match="alerts: code is named in the spec file only"):
        with_overrides(load_spec(SPEC_PATH), {"alerts": {"notifiers": [{"notifier": "os.system"}]}})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("alerts: {notifiers: [{notifier: slack}]}", "alerts.notifiers"),
        ("alerts: {notifiers: [{notifier: a.B, teams: [capcity]}]}", "team 'capcity' of a notifier owns nothing here"),
        ("retention: {anchors: 0}", "retention.anchors"),
    ],
)
def test_a_fault_in_the_section_is_named_with_its_line(tmp_path: Path, section: str, said: str) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(SPEC_PATH.read_text() + section + "\n")
    line = len(path.read_text().splitlines())
    with pytest.raises(SpecError, match=rf"tiny\.yaml:{line}: .*{said}"):
        load_spec(path)
