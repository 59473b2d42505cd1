"""One DAG per refresh spec: scheduled daily, triggered by hand for tuning, backfilled.

check_schema -> launch -> train -> publish -> ett -> report
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, TriggerRule, get_parsing_context
from airflow.sdk.definitions.param import ParamsDict
from ett_airflow.alert_callback import TellOfRedRun
from ett_airflow.broken_spec import BrokenRefresh
from ett_airflow.ett_sensor import EttSensor
from ett_airflow.freshness import freshness_alert
from ett_airflow.operators import CheckSchemaOperator, LaunchOperator, PublishOperator, TrainOperator, snapshot_asset
from ett_airflow.parameters import params_of
from ett_airflow.placement import pool_arguments, team_arguments
from ett_airflow.report_operator import ReportOperator
from ett_airflow.retry import retry_arguments
from ett_airflow.timetable import schedule_of

from trainer.spec import RefreshSpec, SpecError, load_spec

SPECS = Path(os.environ.get("ETT_SPECS") or Path(__file__).parent / "refreshes")
SCHEDULED = os.environ.get("ETT_SCHEDULE", "on") != "off"
_NAME = re.compile(r"^name:\s*[\"']?([A-Za-z0-9_-]+)", re.MULTILINE)


def wanted_specs() -> Iterator[Path]:
    """All spec files, or, when a task starts, only the one that its DAG is made of."""
    dag_id = get_parsing_context().dag_id
    for path in sorted(SPECS.glob("*.yaml")):
        if dag_id is None or dag_id in _NAME.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield path


def refresh_dag(spec: RefreshSpec, spec_path: Path) -> DAG:
    """The refresh of one model."""
    with DAG(
        dag_id=spec.name,
        description=spec.description,
        schedule=schedule_of(spec) if SCHEDULED else None,
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        catchup=True,  # from the first scheduled day on: see CatchUpTimetable
        max_active_runs=1,
        deadline=freshness_alert(spec, spec_path) if SCHEDULED else None,
        default_args=team_arguments(spec),
        on_failure_callback=TellOfRedRun(spec),
        tags=["refresh", spec.resources.scheduler, *sorted({owner.team for owner in spec.owners.values()})],
        doc_md=documentation(spec, spec_path),
        render_template_as_native_obj=False,
    ) as dag:
        retries = {task: retry_arguments(task, spec.retries) for task in ("check_schema", "launch", "train", "publish")}
        check_schema = CheckSchemaOperator(task_id="check_schema", spec_path=str(spec_path), **retries["check_schema"])
        launch = LaunchOperator(task_id="launch", **retries["launch"], **pool_arguments("launch", spec))
        train = TrainOperator(task_id="train", **retries["train"], **pool_arguments("train", spec))
        publish = PublishOperator(task_id="publish", snapshot=snapshot_asset(spec.name), **retries["publish"])
        # A refresh that failed is the one whose lost time is asked for: the last two run whatever came before.
        ett = EttSensor(task_id="ett", trigger_rule=TriggerRule.ALL_DONE, **retry_arguments("ett", spec.retries))
        report = ReportOperator(
            task_id="report",
            refresh=spec,
            trigger_rule=TriggerRule.ALL_DONE,
            **retry_arguments("report", spec.retries),
        )
        check_schema >> launch >> train >> publish >> ett >> report
    # Last, since tasks made before have no copies: Airflow would check each against its schema again, 0.1 s per DAG.
    dag.params = ParamsDict(params_of(spec))
    return dag


def documentation(spec: RefreshSpec, spec_path: Path) -> str:
    """What the DAG's page says: what is refreshed, from which file, and who answers for which part."""
    lines = [f"**{spec.description}**" if spec.description else "", f"Spec: `{spec_path.name}`", ""]
    if spec.owners:
        lines += ["| component | owner | contact |", "| --- | --- | --- |"]
        lines += [f"| {part} | {owner.team} | {owner.contact or ''} |" for part, owner in spec.owners.items()]
    return "\n".join(lines).strip()


for _path in wanted_specs():
    try:
        _spec = load_spec(_path)
    except SpecError as error:
        globals()[f"broken_{_path.stem}"] = BrokenRefresh(_path, error)
    else:
        globals()[_spec.name] = refresh_dag(_spec, _path)
