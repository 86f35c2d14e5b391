"""The route that SQS's page gives to copy, run as it stands. (The pages of the other brokers: ``test_*_story.py``.)"""

from pathlib import Path
from typing import Any

import pytest

from redrive.dev.demo import world
from redrive.dev.demo.play import Play, Story
from tests.servers import Ministack
from tests.story import perform

pytestmark = pytest.mark.server


def test_the_route_of_the_page_brings_back_what_died(
    ministack: Ministack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = world.make_queues(ministack.url)
    error = {"error": {"DataType": "String", "StringValue": "ConnectionRefusedError: [Errno 111] Connection refused"}}

    def bodies(name: str) -> list[Any]:
        got = queues.client.receive_message(QueueUrl=queues.url(name), MaxNumberOfMessages=10).get("Messages", [])
        return sorted(one["Body"] for one in got)

    def tell(play: Play) -> bool:
        for number in range(3):
            queues.client.send_message(
                QueueUrl=queues.url("orders-dlq"), MessageBody=f"order-{number}", MessageAttributes=error
            )
        assert play.redrive("doctor", "orders") == 0
        assert play.redrive("run", "orders") == 0
        return play.states() == {"sent": 3}

    try:
        told = Story(page="amazon_sqs", tell=tell, shorter={"drain": {"wait": "0s"}})
        perform(told, ministack.connection(), tmp_path, monkeypatch)
        assert (bodies("orders"), bodies("orders-dlq")) == (["order-0", "order-1", "order-2"], [])
    finally:
        for url in queues.urls.values():
            queues.client.delete_queue(QueueUrl=url)
