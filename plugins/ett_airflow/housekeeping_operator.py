"""The daily housekeeping as an Airflow task: on schedule it removes where specs say so, by hand it lists first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException

from ett_airflow.housekeeping import Mode, Tidied, table, tidy

DRY_RUN = "dry_run"
REFRESH = "refresh"


class HousekeepingError(AirflowException):
    """Something could not be looked at or removed; all the rest was done."""


class HousekeepingOperator(BaseOperator):
    """Tidies every refresh in the folder `specs`; its XCom says per refresh what went, or would go."""

    def __init__(self, *, specs: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.specs = specs

    def execute(self, context: Context) -> dict[str, Any]:
        done = tidy(
            Path(self.specs),
            mode_of(context),
            only=context["params"].get(REFRESH) or None,
            is_running=goes_on_in_airflow,
            airflow_logs=Path(conf.get("logging", "base_log_folder")),
        )
        for line in table(done).splitlines():
            self.log.info("%s", line)
        failures = [failure for each in done for failure in each.failures]
        if failures:
            raise HousekeepingError(f"{len(failures)} failed, the rest is done: {'; '.join(failures[:5])}")
        return {each.refresh: _summary(each) for each in done}


def mode_of(context: Context) -> Mode:
    """On schedule each spec decides; by hand the Param does."""
    run_type = context["dag_run"].run_type
    if str(getattr(run_type, "value", run_type)) == "scheduled":
        return Mode.AS_IN_SPEC
    return Mode.LIST if context["params"].get(DRY_RUN, True) else Mode.REMOVE


def goes_on_in_airflow(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has the run queued or running; asked from a task."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=["queued", "running"]) > 0


def _summary(each: Tidied) -> dict[str, Any]:
    items = each.removed.items if each.mode is Mode.REMOVE else each.plan.expired
    return {"mode": str(each.mode), "items": len(items), "bytes": sum(item.bytes for item in items)}
