"""One DAG per route: `redrive_<route>`. Airflow finds it here; it is made in `redrive/airflow/routes.py`."""

from redrive.airflow import route_dags

globals().update(route_dags())
