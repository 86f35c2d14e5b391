"""The review page, for an Airflow whose plugins folder this is.

Airflow imports this file by its bare name; ``.airflowignore`` keeps the packages beside it out of that scan. Where the
package is installed, its entry point brings the same plugin already, and Airflow calls the second one an error.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="redrive"):
    from redrive_ui.plugin import RedrivePlugin  # noqa: F401 - found by Airflow, which looks through the module
