"""The Airflow plugin: puts the review page under Airflow's own address and into its navigation.

Airflow finds it by the package's entry point ``airflow.plugins``, or through ``plugins/redrive_plugin.py``, where that
folder is its plugins folder and nothing is installed.
"""

from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from redrive_ui.app import create_app
from redrive_ui.identity import AirflowAccess
from redrive_ui.rendering import PREFIX

#: Airflow may live below a path of its own (``[api] base_url``); the navigation needs the whole of it.
_ROOT = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


class RedrivePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow has no types for mypy
    """Routes, failures and decisions, for whoever may see the routes' DAGs."""

    name = "redrive"
    fastapi_apps = [{"app": create_app(AirflowAccess()), "url_prefix": PREFIX, "name": "Redrive"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Redrive",
            "href": f"{_ROOT}{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "redrive",
        }
    ]
