"""For a developer's machine: a local Airflow, a local Spark, an archive of its classes, and the demo."""
