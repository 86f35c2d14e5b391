"""The DAG `redrive_review`. Airflow finds it here; it is made in `redrive/airflow/review.py`."""

from redrive.airflow import review_dag

globals().update(review_dag())
