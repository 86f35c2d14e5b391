"""Whom Redrive speaks to, by Airflow connection id, also where no Airflow runs."""
