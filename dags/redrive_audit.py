"""The DAG `redrive_audit`. Airflow finds it here; it is made in `redrive/airflow/audit.py`."""

from redrive.airflow import audit_dag

globals().update(audit_dag())
