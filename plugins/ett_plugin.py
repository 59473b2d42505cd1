"""Registers the ETT view and link with Airflow; nothing else happens here."""

from airflow.plugins_manager import AirflowPlugin
from ett_airflow.ui.links import RunReportLink
from ett_airflow.ui.pages import app


class EttPlugin(AirflowPlugin):
    """Effective Training Time in Airflow's UI."""

    name = "ett"
    fastapi_apps = [{"app": app, "url_prefix": "/ett", "name": "ETT"}]
    external_views = [
        {
            "name": "ETT",
            "href": "/ett/run?dag_id={DAG_ID}&run_id={RUN_ID}",
            "destination": "dag_run",
            "url_route": "ett",
        }
    ]
    operator_extra_links = [RunReportLink()]
