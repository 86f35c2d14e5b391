"""What Airflow is told of the package, by its entry point ``apache_airflow_provider``."""

from typing import Any

from redrive.brokers import registry


def get_provider_info() -> dict[str, Any]:
    """Name, description, and the connection types that have a form and *Test* in Airflow's UI.

    Amazon's, Google's and Microsoft's providers bring their own forms, which are used for their brokers.
    """
    forms = {name: form for name in registry.names() if (form := registry.kind(name).form)}
    return {
        "package-name": "redrive",
        "name": "Redrive",
        "description": "Brings dead messages back in batches: drain, find the cause, redeliver under control.",
        "connection-types": [
            {"connection-type": form.conn_type, "hook-class-name": f"redrive.airflow.hooks.{name}"}
            for name, form in forms.items()
        ],
        # How OpenLineage calls our queues and routes.
        "asset-uris": [
            {
                "schemes": ["redrive"],
                "handler": None,
                "to_openlineage_converter": "redrive.airflow.lineage.to_openlineage",
            }
        ],
    }
