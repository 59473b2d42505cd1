"""Registers the ETT pages and links with Airflow; nothing else happens here."""

from airflow.plugins_manager import AirflowPlugin
from ett_airflow import marked_failed
from ett_airflow.timetable import CatchUpTimetable
from ett_airflow.ui.addresses import PREFIX, from_outside
from ett_airflow.ui.links import RunReportLink
from ett_airflow.ui.pages import app


class EttPlugin(AirflowPlugin):
    """Effective Training Time in Airflow's UI."""

    name = "ett"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "ETT"}]
    external_views = [
        {
            "name": "ETT",
            "href": from_outside("refreshes"),
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "ett-refreshes",
        },
        {
            "name": "ETT",
            "href": from_outside("run", "dag_id={DAG_ID}&run_id={RUN_ID}"),
            "destination": "dag_run",
            "url_route": "ett",
        },
        {
            "name": "ETT",
            "href": from_outside("task", "dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}"),
            "destination": "task_instance",
            "url_route": "ett-task",
        },
    ]
    operator_extra_links = [RunReportLink()]
    timetables = [CatchUpTimetable]
    listeners = [marked_failed]
