"""Tells the owners of a refresh what broke and what mended: once each, whatever dies in between."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from airflow.sdk.configuration import conf

from ett_airflow.alert_failure import RedRun
from ett_airflow.alert_message import Alert, AlertKind
from ett_airflow.alert_state import AlertState, AlertStateError, exclusive, read_state, write_state
from ett_airflow.alert_suspect import first_suspect, seconds
from ett_airflow.notifiers import NotifierError, SpecNotifier
from ett_reports.report import JobReport, RefreshReport
from ett_reports.slo import TITLE, Health, Judgement, Owned, Verdict
from trainer.launch import LaunchError
from trainer.run_folder import RunFolder, runs_root, safe_name
from trainer.spec import Alerts, RefreshSpec
from trainer.spec import Owned as SpecOwned

log = logging.getLogger(__name__)

REFRESH = "refresh"
FRESHNESS = "freshness"


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What one run has to say. `unjudged`: subjects that have no service level any more."""

    alerts: Sequence[Alert] = ()
    unjudged: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class AlertedRun:
    """The run that alerts speak of. `refresh` is its spec file's content: owners, and who is told."""

    refresh: RefreshSpec
    run_id: str
    window_end: date

    def alert(self, kind: AlertKind, subject: str, title: str, *, owned: str | None, **facts: str) -> Alert:
        """An alert of this run, to the owner of component `owned`, else to the fallback."""
        owner = self.refresh.owners.get(SpecOwned(owned)) if owned in list(SpecOwned) else None
        owner = owner or self.refresh.alerts.fallback
        base = conf.get("api", "base_url", fallback=None) or "http://localhost:8080"
        dag, run = (urllib.parse.quote(part, safe="") for part in (self.refresh.name, self.run_id))
        query = urllib.parse.urlencode({"dag_id": self.refresh.name, "run_id": self.run_id})
        return Alert(
            kind=kind,
            refresh=self.refresh.name,
            run=self.run_id,
            window_end=self.window_end.isoformat(),
            subject=subject,
            title=title,
            team=owner.team if owner else "",
            contact=(owner.contact or "") if owner else "",
            run_url=f"{base.rstrip('/')}/dags/{dag}/runs/{run}",
            report_url=f"{base.rstrip('/')}/ett/run?{query}",
            **facts,
        )


def level_findings(
    run: AlertedRun, judgement: Judgement, job: JobReport, refresh: RefreshReport | None
) -> list[Findings]:
    """Broken and kept service levels. One that could not be judged (degraded, pending) leaves its subject as it is."""
    found = []
    for verdict in judgement.verdicts:
        if verdict.health is Health.UNSET:
            found.append(Findings(unjudged=[verdict.subject.value]))
        elif verdict.health in (Health.BREACHED, Health.HEALTHY):
            suspect = first_suspect(verdict, job, refresh, judgement) if verdict.health is Health.BREACHED else ""
            found.append(Findings(alerts=[_level_alert(run, verdict, suspect)]))
    return found


def _level_alert(run: AlertedRun, verdict: Verdict, suspect: str) -> Alert:
    figure, limit = _measured(verdict)
    return run.alert(
        AlertKind.BROKEN if verdict.health is Health.BREACHED else AlertKind.MENDED,
        verdict.subject.value,
        TITLE[verdict.subject],
        owned=verdict.subject.value,
        sign="service level",
        figure=figure,
        limit=limit,
        suspect=suspect,
        section="a-service-level-broke",
    )


def _measured(verdict: Verdict) -> tuple[str, str]:
    """Figure and limit in the unit of the level: a share of wall time, or seconds."""
    level, spent = verdict.level, verdict.spent_ns or 0
    assert level is not None
    if level.share is None:
        return seconds(spent), f"at most {seconds(round((level.seconds or 0) * 1e9))}"
    wall = (verdict.limit_ns or 0) / level.share if level.share else 0
    asked = "at least" if verdict.subject is Owned.EFFECTIVE_TRAINING else "at most"
    share = f"{100 * spent / wall:.1f}% of wall time ({seconds(spent)})" if wall else seconds(spent)
    return share, f"{asked} {100 * level.share:g}%"


def run_findings(run: AlertedRun, red: RedRun | None, state: AlertState) -> Findings:
    """The refresh itself: red with its class, or green."""
    if red is not None:
        alert = run.alert(
            AlertKind.FAILED,
            REFRESH,
            "Refresh",
            owned=red.owned,
            sign=red.sign,
            figure=f"{red.task}, {red.failure}",
            suspect=red.message,
            section=str(red.failure),
        )
        return Findings(alerts=[alert])
    alerts = [run.alert(AlertKind.RECOVERED, REFRESH, "Refresh", owned=None, suspect=_left_behind(run, state))]
    if FRESHNESS in state.standing:
        alerts.append(run.alert(AlertKind.FRESH, FRESHNESS, "Freshness", owned=SpecOwned.PUBLISHING))
    return Findings(alerts=[_for_owner_of(alert, state) for alert in alerts])


def _left_behind(run: AlertedRun, state: AlertState) -> str:
    """A later day that succeeds does not train the day that failed."""
    failed = state.standing.get(REFRESH)
    if failed is None or not failed.is_trouble or failed.run == run.run_id:
        return ""
    return f"Run {failed.run} (data up to {failed.window_end}) is still red: clear it, or backfill its days."


def _for_owner_of(alert: Alert, state: AlertState) -> Alert:
    """The end of a trouble goes to whom its beginning went."""
    before = state.standing.get(alert.subject)
    if before is None or not before.is_trouble:
        return alert
    return Alert.from_dict({**alert.to_dict(), "team": before.team, "contact": before.contact})


def take_in(state: AlertState, findings: Sequence[Findings]) -> None:
    """Let `state` know what a run found."""
    for found in findings:
        for alert in found.alerts:
            state.observe(alert)
        for subject in found.unjudged:
            state.forget(subject)


def send_due(refresh_root: Path, state: AlertState, settings: Alerts, context: Mapping[str, Any]) -> None:
    """Send what is due and write the state after each message; one that failed stays due and is tried next time."""
    notifiers = [SpecNotifier(entry) for entry in settings.notifiers]
    state.keep_notifiers({notifier.key for notifier in notifiers})
    write_state(refresh_root, state)
    for notifier in notifiers:
        for subject, alert in state.due(notifier.key):
            if alert.is_trouble and not notifier.wants(alert):
                continue
            try:
                notifier.send(alert, context)
            except NotifierError as error:
                log.error("alert %r was not sent and is tried again at the next report: %s", alert.headline, error)
                continue
            log.info("alert sent by %s: %s", notifier.entry.notifier, alert.headline)
            state.delivered(notifier.key, subject, alert)
            write_state(refresh_root, state)


def alert_run(
    run: AlertedRun,
    context: Mapping[str, Any],
    *,
    red: RedRun | None,
    judgement: Judgement | None = None,
    job: JobReport | None = None,
    refresh: RefreshReport | None = None,
) -> None:
    """All alerts of a run's end. What goes wrong here is logged: a report does not fail for want of a mail server."""

    def observed(state: AlertState) -> list[Findings]:
        found = [run_findings(run, red, state)]
        if judgement is not None and job is not None:
            found += level_findings(run, judgement, job, refresh)
        return found

    _take_in_and_send(run, context, observed)


def alert_red(run: AlertedRun, context: Mapping[str, Any], red: RedRun) -> None:
    """For a run that ended red without its report: told unless the report has told already, which knows more."""

    def observed(state: AlertState) -> list[Findings]:
        told = any(alert.kind is AlertKind.FAILED and alert.run == run.run_id for alert in state.standing.values())
        return [] if told else [run_findings(run, red, state)]

    _take_in_and_send(run, context, observed)


def alert_late(run: AlertedRun, context: Mapping[str, Any], *, figure: str, limit: str) -> None:
    """A freshness deadline passed; the next green run of this window or a later one ends it."""
    late = run.alert(
        AlertKind.LATE,
        FRESHNESS,
        "Freshness",
        owned=SpecOwned.PUBLISHING,
        sign="deadline",
        figure=figure,
        limit=limit,
        section="freshness-deadline",
    )
    _take_in_and_send(run, context, lambda state: [Findings(alerts=[late])])


def _take_in_and_send(
    run: AlertedRun, context: Mapping[str, Any], observed: Callable[[AlertState], Sequence[Findings]]
) -> None:
    root = runs_root() / run.refresh.name
    try:
        root.mkdir(parents=True, exist_ok=True)  # a run that could not be resolved has left no folder
        with exclusive(root):
            state = read_state(root)
            take_in(state, observed(state))
            _forget_deleted_runs(state, run.refresh.name)
            send_due(root, state, run.refresh.alerts, context)
    except (AlertStateError, LaunchError, OSError) as error:
        log.error("alerts of run %s were not sent, and are due at the next report: %s", run.run_id, error)
    except Exception:
        log.exception("alerts of run %s were not sent, and are due at the next report", run.run_id)


def _forget_deleted_runs(state: AlertState, refresh: str) -> None:
    """Nobody can clear an old run whose folder housekeeping has removed, so nothing would ever end its trouble."""
    for subject, alert in list(state.standing.items()):
        if subject.startswith(f"{REFRESH} ") and not RunFolder.of(refresh, safe_name(alert.run)).root.exists():
            state.forget(subject)
