"""``redrive demo --broker pubsub``, and with it the route of Pub/Sub's page.

Google's own subscriber, with ``FlowControl(max_messages, max_lease_duration)`` and a slow callback, on the stand-in.
"""

from pathlib import Path

import pytest

from redrive.dev.demo.stories import pubsub
from tests.stand_ins.pubsub import PubSubServer
from tests.stand_ins.pubsub_topics import World
from tests.story import perform

pytestmark = pytest.mark.server


def test_what_a_slow_subscriber_processed_is_suppressed_and_the_rest_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pub/Sub takes no fewer deliveries than five, which last a minute.
    monkeypatch.setattr(pubsub, "ATTEMPTS", 2)
    monkeypatch.setattr(pubsub, "WORK", 2.0)
    with PubSubServer(World(least_attempts=2)) as server:
        extra = {"project": "shop", "endpoint": server.endpoint}
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        said = perform("pubsub", connection, tmp_path, monkeypatch)

    assert "because they were leased too long" in said
    assert "lease_expired" in said, "what explain makes of that line"
