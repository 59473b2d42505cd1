"""Alerts and housekeeping in a real Airflow: mails to a real server, once each; nothing removed in a dry run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import RealAirflow, Refresh, day, wait_until
from tests.plugins.mail_server import Mailbox, mail_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

QUICK = {
    "name: tiny": "name: noisy",
    "batch_size: 64": "batch_size: 1024",
    "ranks: 2": "ranks: 1",
    "interval_s: 3": "interval_s: 60",
}
SECTIONS = """
service_levels:
  trainer_init: {seconds: 0.001}
  data: {seconds: 3600}
alerts:
  fallback: {team: on-call, contact: on-call@example.com}
  notifiers:
    - notifier: airflow.providers.smtp.notifications.smtp.SmtpNotifier
      arguments:
        to: "{{ alert.contact }}"
        subject: "[ETT] {{ alert.headline }}"
        html_content: "{{ alert.html }}"
"""


@pytest.fixture(scope="module")
def mailbox(airflow: RealAirflow) -> Iterator[Mailbox]:
    """DAG `noisy`, whose trainer can never be quick enough, and the server that its alerts go to."""
    with mail_server() as box:
        airflow.api.post("/connections", {"connection_id": "smtp_default", **box.connection})
        text = (airflow.specs / "tiny.yaml").read_text()
        for old, new in QUICK.items():
            assert old in text
            text = text.replace(old, new)
        (airflow.specs / "noisy.yaml").write_text(text + SECTIONS)
        wait_until(lambda: is_there(airflow, "noisy"), lambda: str(airflow.api.get("/importErrors")))
        airflow.api.patch("/dags/noisy", {"is_paused": False})
        yield box


def is_there(airflow: RealAirflow, dag_id: str) -> bool:
    return any(dag["dag_id"] == dag_id for dag in airflow.api.get("/dags")["dags"])


def triggered(airflow: RealAirflow, dag_id: str, run_id: str, **params: Any) -> Refresh:
    airflow.api.post(f"/dags/{dag_id}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": params})
    return Refresh(airflow, run_id, dag_id)


def test_the_owner_of_a_broken_service_level_gets_one_mail_with_the_link_to_the_run(
    airflow: RealAirflow, mailbox: Mailbox
) -> None:
    run = triggered(airflow, "noisy", "loud", window_start=day(5), window_end=day(4))
    assert run.ended() == "success", run.tasks()
    assert len(mailbox.subjects) == 1, mailbox.subjects
    recipients, message = mailbox.received[0]
    assert recipients == ["on-call@example.com"]
    assert mailbox.subjects[0].startswith("[ETT] noisy: Trainer initialization broke its service level:")
    text = message.get_body(("html",))
    assert text is not None
    assert f'<a href="{airflow.server.url}/dags/noisy/runs/loud">' in text.get_content()
    body = {"dry_run": False, "dag_run_id": run.run_id, "task_ids": ["report"], "only_failed": False}
    airflow.api.post("/dags/noisy/clearTaskInstances", body)
    run.until(lambda: run.state != "success", "it does not run again")
    assert run.ended() == "success"
    assert len(mailbox.subjects) == 1  # still broken, and known to be


def test_a_run_that_could_not_even_be_resolved_is_told_once_with_what_its_first_task_said(
    airflow: RealAirflow, mailbox: Mailbox
) -> None:
    run = triggered(airflow, "noisy", "impossible", window_start=day(3), window_end=day(4))
    assert run.ended() == "failed", run.tasks()
    expected = "[ETT] noisy: the refresh failed: check_schema, control-plane"
    assert mailbox.subjects[1:] == [expected]
    text = mailbox.received[1][1].get_body(("html",))
    assert text is not None
    assert "must be after window_start" in text.get_content()


def test_housekeeping_by_hand_lists_and_changes_nothing(airflow: RealAirflow, mailbox: Mailbox) -> None:
    wait_until(lambda: is_there(airflow, "ett_housekeeping"), lambda: str(airflow.api.get("/importErrors")))
    airflow.api.patch("/dags/ett_housekeeping", {"is_paused": False})
    before = set(airflow.home.glob("runs/*/*"))
    run = triggered(airflow, "ett_housekeeping", f"by-hand-{time.time_ns()}")
    run.until(lambda: run.state in ("success", "failed"), "housekeeping does not end")
    assert run.state == "success", run.tasks()
    path = f"/dags/ett_housekeeping/dagRuns/{run.run_id}/taskInstances/tidy/xcomEntries/return_value"
    value = airflow.api.get(path)["value"]
    told = json.loads(value) if isinstance(value, str) else value
    assert {each["mode"] for each in told.values()} == {"list"}
    assert {"tiny", "noisy"} <= told.keys()
    assert before <= set(airflow.home.glob("runs/*/*"))
