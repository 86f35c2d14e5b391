"""Redrive's DAGs. A DAG file of two lines is all that an Airflow needs::

    from redrive.airflow import dags

    globals().update(dags())

Airflow takes a file for a DAG file where it holds the words ``airflow`` and ``dag``, as the first line does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from redrive.extras import needing

if TYPE_CHECKING:
    from airflow.sdk import DAG

#: What such a file holds.
DAG_FILE = "from redrive.airflow import dags\n\nglobals().update(dags())\n"

__all__ = ["DAG_FILE", "audit_dag", "dags", "review_dag", "route_dags"]


def dags() -> "dict[str, DAG]":
    """Every DAG by its id: ``redrive_<route>`` for each route, ``redrive_review``, ``redrive_audit``.

    A mistake in the configuration raises :class:`~redrive.errors.SettingsError`, so that Airflow shows it as the
    file's import error, with the path of every wrong key.
    """
    return {**route_dags(), **review_dag(), **audit_dag()}


def route_dags() -> "dict[str, DAG]":
    """The DAGs ``redrive_<route>``, for a file of their own."""
    return _dags_of("routes")


def review_dag() -> "dict[str, DAG]":
    """The DAG ``redrive_review``, for a file of its own."""
    return _dags_of("review")


def audit_dag() -> "dict[str, DAG]":
    """The DAG ``redrive_audit``, for a file of its own."""
    return _dags_of("audit")


def _dags_of(module: str) -> "dict[str, DAG]":
    # Imported here: the library has no need of Airflow to know that its DAGs are there.
    with needing("airflow", "a DAG file"):
        import_module("airflow")
    import_module("redrive.airflow.compat")  # before the others, because it says what is wrong where Airflow is too old
    made: dict[str, DAG] = import_module(f"redrive.airflow.{module}").dags()
    return made
