"""Service levels: judged on what is known, and never healthy while something is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ett_reports.events import L1, Cause, Phase, Source
from ett_reports.report import JobReport, JobState, LogQuality
from ett_reports.slo import (
    Health,
    Judgement,
    Owned,
    Owner,
    PolicyError,
    Severity,
    Snapshot,
    judge,
    load_policy,
    policy_from,
)
from tests.ett_reports.render.sample_reports import failed_once_job, job_report, quiet_job, refresh_report

OWNERS = {"pt2_compile": {"team": "compiler", "contact": "#pt2"}, "data": {"team": "data"}}


def judged(job: JobReport, levels: dict[str, dict[str, float]], refresh: object = None) -> Judgement:
    return judge(Snapshot(job=job, refresh=refresh, policy=policy_from(OWNERS, levels)))  # type: ignore[arg-type]


def health(job: JobReport, name: str, refresh: object = None, **level: float) -> Health:
    return judged(job, {name: level}, refresh).verdict(Owned(name)).health


def test_a_budget_is_kept_up_to_its_limit_and_broken_beyond() -> None:
    job = failed_once_job()  # compiles for 78 s of 723 s
    assert health(job, "pt2_compile", seconds=78) is Health.HEALTHY
    assert health(job, "pt2_compile", seconds=77.9) is Health.BREACHED
    assert health(job, "pt2_compile", share=78 / 723) is Health.HEALTHY
    assert health(job, "pt2_compile", share=0.1) is Health.BREACHED


def test_effective_training_share_is_a_goal() -> None:
    job = failed_once_job()  # 68.6%
    assert health(job, "effective_training", share=0.68) is Health.HEALTHY
    assert health(job, "effective_training", share=0.69) is Health.BREACHED


def test_without_a_level_nothing_is_claimed() -> None:
    assert judged(quiet_job(), {}).verdict(Owned.SHUTDOWN).health is Health.UNSET


def test_a_breach_names_its_owner() -> None:
    judgement = judged(failed_once_job(), {"pt2_compile": {"seconds": 60}})
    (breach,) = judgement.breaches
    assert breach.owner == Owner(team="compiler", contact="#pt2")
    (alert,) = [finding for finding in judgement.findings if finding.severity is Severity.ALERT]
    assert alert.owner == breach.owner
    assert alert.message == "PT2 compilation took 78.0 s, over its budget of 60.0 s"


@pytest.mark.parametrize(
    ("sources", "degraded"),
    [
        ((Source.LAUNCHER,), {"trainer_init", "pt2_compile", "wasted_training", "shutdown", "unattributed"}),
        ((Source.TRAINER,), {"scheduling", "shutdown", "unattributed"}),
        ((Source.TRAINER, Source.SCHEDULER), set()),
        ((), {"scheduling", "trainer_init", "pt2_compile", "wasted_training", "shutdown", "unattributed"}),
    ],
)
def test_a_missing_source_reads_degraded_never_healthy(sources: tuple[Source, ...], degraded: set[str]) -> None:
    job = dataclasses.replace(quiet_job(), sources=sources)
    names = [owned for owned in Owned if owned not in (Owned.DATA, Owned.PUBLISHING, Owned.EFFECTIVE_TRAINING)]
    judgement = judged(job, {name.value: {"share": 1.0} for name in names})
    found = {verdict.subject.value for verdict in judgement.verdicts if verdict.health is Health.DEGRADED}
    assert found == degraded


def test_a_goal_missed_while_the_trainer_is_silent_is_degraded_not_a_breach() -> None:
    job = dataclasses.replace(failed_once_job(), sources=(Source.LAUNCHER,))
    assert health(job, "effective_training", share=0.9) is Health.DEGRADED


def test_a_breach_stands_although_something_is_missing() -> None:
    job = dataclasses.replace(failed_once_job(), sources=(Source.TRAINER,))
    assert health(job, "scheduling", seconds=1) is Health.BREACHED


def test_a_missing_rank_or_lost_events_degrade() -> None:
    job = quiet_job()
    one = dataclasses.replace(job.attempts[0], missing_ranks=(3,), ranks=(0, 1, 2))
    assert health(dataclasses.replace(job, attempts=(one,)), "pt2_compile", seconds=99) is Health.DEGRADED
    silent = dataclasses.replace(job.attempts[0], ranks=())
    assert health(dataclasses.replace(job, attempts=(silent,)), "pt2_compile", seconds=99) is Health.DEGRADED
    lossy = dataclasses.replace(job, quality=LogQuality(missing_sequence=3))
    assert health(lossy, "scheduling", seconds=99) is Health.DEGRADED


def test_a_live_job_is_not_judged_by_its_share_yet_but_by_its_seconds() -> None:
    job = dataclasses.replace(failed_once_job(), state=JobState.LIVE)
    assert health(job, "pt2_compile", share=0.01) is Health.PENDING
    assert health(job, "pt2_compile", seconds=1) is Health.BREACHED
    assert health(job, "effective_training", share=0.99) is Health.PENDING


def test_tasks_are_judged_on_the_refresh() -> None:
    refresh = refresh_report()  # check_schema takes 10 s of 812 s
    assert health(quiet_job(), "data", refresh, seconds=10) is Health.HEALTHY
    assert health(quiet_job(), "data", refresh, seconds=9) is Health.BREACHED
    assert health(quiet_job(), "data", refresh, share=0.01) is Health.BREACHED
    assert health(quiet_job(), "data", None, seconds=10) is Health.DEGRADED
    without = dataclasses.replace(refresh, tasks=refresh.tasks[1:])
    assert health(quiet_job(), "data", without, seconds=10) is Health.DEGRADED


def detectors(job: JobReport) -> set[str]:
    return {finding.detector for finding in judged(job, {}).findings}


def test_a_run_without_trouble_has_no_finding() -> None:
    assert detectors(quiet_job()) == set()


def test_an_unrecovered_failure_is_an_alert() -> None:
    job = failed_once_job()
    lost = dataclasses.replace(job.failures[0], recovered=False, cause=Cause.APPLICATION)
    assert "unrecovered_failure" in detectors(dataclasses.replace(job, failures=(lost,)))
    assert "unrecovered_failure" not in detectors(dataclasses.replace(job, failures=(lost,), state=JobState.LIVE))


def test_three_attempts_without_progress_are_a_crash_loop() -> None:
    job = quiet_job()
    dead = [
        dataclasses.replace(job.attempts[0], number=n, outcome=JobState.FAILED, productive_ns=0) for n in range(1, 5)
    ]
    assert "crash_loop" not in detectors(dataclasses.replace(job, attempts=tuple(dead[:2])))
    assert "crash_loop" in detectors(dataclasses.replace(job, attempts=tuple(dead[:3])))
    moving = dataclasses.replace(dead[1], productive_ns=1)
    assert "crash_loop" not in detectors(dataclasses.replace(job, attempts=(dead[0], moving, *dead[2:])))


def test_unexplained_time_and_recompilation_are_found() -> None:
    job = job_report([
        (L1.TTS, Phase.UNATTRIBUTED, 10, None),
        (L1.PRODUCTIVE, Phase.STEP, 80, 1),
        (L1.IN_LOOP, Phase.RECOMPILE, 10, 1),
    ])  # fmt: skip
    assert {"unexplained_time", "recompilation"} <= detectors(job)


def test_each_missing_source_is_a_finding_once() -> None:
    job = dataclasses.replace(quiet_job(), degraded=("no launcher events",))
    refresh = dataclasses.replace(refresh_report(), degraded=("no launcher events", "no REST"))
    messages = [f.message for f in judged(job, {}, refresh).findings if f.detector == "missing_source"]
    assert messages == ["no launcher events", "no REST"]


@pytest.mark.parametrize(
    ("owners", "levels", "message"),
    [
        ({"compiler": {"team": "x"}}, {}, "'compiler' is not a component: use one of scheduling"),
        ({"shutdown": {"contact": "x"}}, {}, "owner of shutdown: expected"),
        ({}, {"shutdown": {}}, "service level of shutdown: a service level is either"),
        ({}, {"shutdown": {"share": 0.1, "seconds": 3}}, "service level of shutdown: a service level is either"),
        ({}, {"shutdown": {"share": 7}}, "share 7 is not between 0 and 1"),
        ({}, {"shutdown": {"seconds": "9"}}, "'9' is not a number"),
        ({}, {"shutdown": {"seconds": True}}, "True is not a number"),
    ],
)
def test_a_wrong_policy_names_its_entry(owners: dict, levels: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(PolicyError) as raised:
        policy_from(owners, levels)
    assert message in str(raised.value)


def test_policy_takes_objects_as_well_as_mappings() -> None:
    given = policy_from({"shutdown": Owner(team="a")}, {})
    assert given.owners[Owned.SHUTDOWN].label == "a"


def test_policy_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"owners": OWNERS, "service_levels": {"shutdown": {"seconds": 30}}}))
    assert load_policy(path).service_levels[Owned.SHUTDOWN].seconds == 30
    path.write_text("{")
    with pytest.raises(PolicyError, match="not JSON"):
        load_policy(path)
    path.write_text('{"owner": {}}')
    with pytest.raises(PolicyError, match="expected an object with 'owners'"):
        load_policy(path)
