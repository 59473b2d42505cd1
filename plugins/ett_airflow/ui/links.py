"""The link from a task to its run's ETT report."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from ett_airflow.ett_sensor import EttSensor
from ett_airflow.report_operator import ReportOperator
from ett_airflow.ui.addresses import from_outside

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RunReportLink(BaseOperatorLink):
    """Opens the run's ETT report."""

    name = "ETT report"
    operators = [EttSensor, ReportOperator]

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return from_outside("run", urllib.parse.urlencode({"dag_id": ti_key.dag_id, "run_id": ti_key.run_id}))
