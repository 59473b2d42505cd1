"""Refreshes of test jobs: the tasks of `dags/refresh.py` with jobs that are a few lines long and do as the run says.

`cases` is triggered by hand; `dated` has a schedule and an asset too. A job is `tiny_job` with the run's steps.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException
from ett_airflow.ett_sensor import EttSensor
from ett_airflow.freshness import freshness_alert
from ett_airflow.job_operator import TaskRun
from ett_airflow.operators import CheckSchemaOperator, LaunchOperator, PublishOperator, TrainOperator, snapshot_asset
from ett_airflow.parameters import params_of
from ett_airflow.report_operator import ReportOperator
from ett_airflow.retry import retry_arguments
from ett_airflow.timetable import schedule_of

from trainer.launch import JobKey, JobRequest
from trainer.run_folder import RunFolder
from trainer.spec import load_spec

SPECS = Path(os.environ["ETT_SPECS"]).parent / "cases"


class Job:
    """Mixed into an operator: its job is `tiny_job`, told what to do by Param `<task>_steps`."""

    def request(self, run: TaskRun, key: JobKey) -> JobRequest:
        steps = str(run.context["params"][f"{key.task}_steps"]).split()
        return JobRequest(
            key=key,
            command=("tiny_job", *steps),
            run_folder=run.folder,
            devices=int(key.task == "train"),
            grace_s=2.0,
            hang_timeout_s=120.0,
        )


class Check(Job, CheckSchemaOperator):
    """The run is decided as ever."""


class Launch(Job, LaunchOperator):
    """Until it holds its capacity."""


class Train(Job, TrainOperator):
    """To the anchor."""


class Publish(Job, PublishOperator):
    """To the registry; with Param `skip_publish_on_retry` a retry thinks that its work is done."""

    def begin(self, run: TaskRun) -> Any:
        if run.try_number > 1 and run.context["params"]["skip_publish_on_retry"]:
            raise AirflowSkipException("published already, I think")
        return super().begin(run)


def told(context: Any, what: str) -> None:
    """A callback leaves a file behind."""
    folder = RunFolder.of(context["dag"].dag_id, context["run_id"])
    (folder.root / f"{context['ti'].task_id}-{what}-{context['ti'].try_number}").touch()


def on_failure(context: Any) -> None:
    told(context, "failed")


def on_retry(context: Any) -> None:
    told(context, "retried")


def refresh_of_test_jobs(path: Path) -> DAG:
    """The DAG of one spec."""
    spec = load_spec(path)
    steps = {"check_schema_steps": "*:0:done", "train_steps": "*:100:0", "publish_steps": "*:0:register"}
    params: dict[str, Any] = {name: Param(value, type="string") for name, value in steps.items()}
    with DAG(
        dag_id=spec.name,
        schedule=schedule_of(spec),
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        catchup=True,
        max_active_runs=1,
        deadline=freshness_alert(spec, path),
        params={**params_of(spec), **params, "skip_publish_on_retry": Param(False, type="boolean")},
    ) as dag:
        retries = {task: retry_arguments(task, spec.retries) for task in ("check_schema", "launch", "train", "publish")}
        callbacks: dict[str, Any] = {"on_failure_callback": on_failure, "on_retry_callback": on_retry}
        check = Check(task_id="check_schema", spec_path=str(path), **retries["check_schema"])
        launch = Launch(task_id="launch", **retries["launch"])
        train = Train(task_id="train", **retries["train"], **callbacks)
        publish = Publish(task_id="publish", snapshot=snapshot_asset(spec.name), **retries["publish"])
        ett = EttSensor(task_id="ett", trigger_rule=TriggerRule.ALL_DONE, **retry_arguments("ett", spec.retries))
        report = ReportOperator(
            task_id="report", trigger_rule=TriggerRule.ALL_DONE, **retry_arguments("report", spec.retries)
        )
        check >> launch >> train >> publish >> ett >> report
    return dag


for _path in sorted(SPECS.glob("*.yaml")):
    globals()[_path.stem] = refresh_of_test_jobs(_path)

LANDING = Asset(name="landing", uri="x-test://landing")
with DAG(dag_id="lands_data", schedule=None) as lands_data:
    from airflow.sdk import BaseOperator

    BaseOperator(task_id="land", outlets=[LANDING])
