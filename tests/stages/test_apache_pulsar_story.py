"""``redrive demo --broker pulsar``, and with it the route of Pulsar's page, on a real server."""

import uuid
from pathlib import Path

import pytest

from tests.pulsar_server import Pulsar
from tests.story import perform

pytestmark = pytest.mark.server


def test_a_consumer_that_hangs_is_found_and_what_it_holds_is_given_to_others(
    pulsar_server: Pulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = f"public/story-{uuid.uuid4().hex[:8]}"
    pulsar_server.ask("PUT", f"namespaces/{namespace}", {})
    said = perform("pulsar", pulsar_server.connection(schema=namespace), tmp_path, monkeypatch)

    assert "a consumer is given no more once it holds 50,000 unacked messages" in " ".join(said.split())
    assert "worker/hung of orders" in said
