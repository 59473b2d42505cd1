"""Alerts by mail: Airflow's own SMTP notifier, to a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date

import pytest
from ett_airflow.alert_failure import FailureClass, RedRun
from ett_airflow.alerts import AlertedRun, alert_run

from tests.plugins.conftest import SPEC_PATH
from tests.plugins.mail_server import Mailbox, mail_server
from trainer.spec import Alerts, Notifier, RefreshSpec, load_spec

RED = RedRun(task="check_schema", failure=FailureClass.DATA, message="part-0.parquet: column <visits>: missing {{ 1 }}")
TO_THE_OWNER = Notifier(
    notifier="airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    arguments={
        "to": "{{ alert.contact or 'on-call@example.com' }}",
        "subject": "[ETT] {{ alert.headline }}",
        "html_content": "{{ alert.html }}",
    },
)


@pytest.fixture
def mailbox(home: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with mail_server() as box:
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(box.connection))
        yield box


def end(red: RedRun | None, day: int, refresh: RefreshSpec | None = None) -> None:
    spec = refresh or load_spec(SPEC_PATH)
    spec = spec.model_copy(update={"alerts": Alerts(notifiers=[TO_THE_OWNER])})
    alert_run(AlertedRun(refresh=spec, run_id=f"day-{day}", window_end=date(2026, 11, day)), {}, red=red)


def test_a_failed_run_and_its_recovery_are_mailed_once_each(mailbox: Mailbox) -> None:
    for day, red in ((2, RED), (2, RED), (3, RED), (4, None), (5, None)):
        end(red, day)
    assert mailbox.subjects == [
        "[ETT] tiny: the refresh failed: check_schema, data",
        "[ETT] tiny: the refresh succeeds again",
    ]
    recipients, message = mailbox.received[0]
    assert recipients == ["on-call@example.com"]  # feature-engineering has no contact in this spec
    body = message.get_body(("html",))
    assert body is not None
    text = body.get_content()
    assert "column &lt;visits&gt;: missing {{ 1 }}" in text
    assert '<a href="http://localhost:8080/dags/tiny/runs/day-2">' in text
    assert "docs/runbook.md#data" in text


def test_a_server_that_refuses_is_asked_again_with_the_next_report(
    mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox.refusal = "554 no space"
    end(RED, 2)
    assert "was not sent and is tried again at the next report" in caplog.text
    mailbox.refusal = ""
    end(RED, 3)
    assert len(mailbox.received) == 1


def test_a_server_that_is_down_costs_no_report(monkeypatch: pytest.MonkeyPatch, mailbox: Mailbox) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps({**mailbox.connection, "port": 1}))
    end(RED, 2)
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(mailbox.connection))
    end(RED, 2)
    assert len(mailbox.received) == 1
