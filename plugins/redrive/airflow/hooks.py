"""Connection forms with *Test*, for brokers of which no provider of Airflow has one.

``redrive.airflow.hooks.NAME`` is the hook of the broker ``NAME``. Redrive's tasks use no hooks: they read a connection
and open the broker's adapter, as a hook does for the test.
"""

from typing import Any, ClassVar

from airflow.sdk import BaseHook

from redrive.brokers import registry
from redrive.brokers.base import ConnectionForm
from redrive.errors import QueueMissing, RedriveError

#: Asked for to see that the broker answers and lets us in. Nobody has a queue of this name, and none is made.
_NO_QUEUE = "redrive-connection-test"


class BrokerHook(BaseHook):  # type: ignore[misc]  # Airflow has no types for mypy
    """What the hooks of all brokers share."""

    broker: ClassVar[str]
    form: ClassVar[ConnectionForm]
    conn_name_attr = "conn_id"

    def __init__(self, conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """What the form calls the fields and what stands in them; asked by Airflow."""
        return {
            "hidden_fields": [],
            "relabeling": dict(cls.form.labels),
            "placeholders": dict(cls.form.placeholders),
        }

    def test_connection(self) -> tuple[bool, str]:
        """Connect and ask for a queue that isn't there: whether it went well, and what to tell."""
        try:
            broker = registry.open_broker(self.broker, self.conn_id)
            try:
                broker.depth(_NO_QUEUE)
            finally:
                broker.close()
        except QueueMissing:
            pass
        except RedriveError as error:
            return False, str(error)
        return True, "The broker answers and takes these credentials; `redrive doctor` looks at the queues of routes"


def __getattr__(name: str) -> type[BrokerHook]:
    form = registry.kind(name).form if name in registry.names() else None
    if form is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind = registry.kind(name)
    members = {
        "__module__": __name__,
        "__doc__": f"Connections to {kind.title}.",
        "broker": name,
        "form": form,
        "conn_type": form.conn_type,
        "hook_name": kind.title,
        "default_conn_name": f"{name}_default",
    }
    return type(name, (BrokerHook,), members)
