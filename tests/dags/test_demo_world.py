"""The demo before Redrive enters: a broken shop fills the dead-letter and delay queues of a real server."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from tests import servers

from redrive.dev.demo import consumer, orders, services, world
from redrive.errors import UsageError

pytestmark = pytest.mark.server

MESSAGES = 60
SELF_DEAD_LETTERED = {
    "BrokenPipe/reset": ("ConnectionResetError", "BrokenPipeError", "Connection reset", "Broken pipe"),
    "refused": ("Connection refused",),
    "timeout": ("TimeoutError: timed out",),
    "name lookup": ("socket.gaierror",),
    "locked": ("sqlite3.OperationalError: database is locked",),
    "pool": ("QueuePool limit",),
    "unique": ("sqlite3.IntegrityError: UNIQUE constraint failed",),
    "foreign key": ("sqlite3.IntegrityError: FOREIGN KEY constraint failed",),
    "429": ("HTTP Error 429",),
    "503": ("HTTP Error 503",),
    "502": ("HTTP Error 502",),
    "504": ("HTTP Error 504",),
    "401": ("HTTP Error 401",),
    "403": ("HTTP Error 403",),
    "404": ("HTTP Error 404",),
    "413": ("HTTP Error 413",),
    "not JSON": ("json.decoder.JSONDecodeError",),
    "not UTF-8": ("UnicodeDecodeError",),
    "missing field": ("InvalidOrder: required field",),
    "KeyError": ("KeyError: 'CHF'",),
    "TypeError": ("TypeError: 'NoneType'",),
    "ZeroDivisionError": ("ZeroDivisionError",),
    "IndexError": ("IndexError",),
    "no customer": ("CustomerNotFound",),
    "no SKU": ("not in catalogue",),
    "credential": ("TokenExpired",),
    "no handler": ("NoHandler",),
    "disk": ("No space left on device", "Is a directory"),
    "database full": ("database or disk is full",),
    "stale": ("StaleRead: version conflict",),
    "expired": ("OfferExpired",),
}


class Aftermath(NamedTuple):
    """What lies where after the broken consumer has stopped."""

    sent: list[orders.OrderMessage]
    tally: Counter[str]
    dead: list[dict[str, Any]]
    delayed: list[dict[str, Any]]
    left: world.Counts
    processed: set[str]


class Patient(consumer.Consumer):
    """Stops when nobody works any more but the ``hung``, whose work never ends."""

    def __init__(self, queues: world.Queues, shop: services.Shop, hung: int) -> None:
        super().__init__(queues, shop)
        self._hung = hung

    def _consume(self, goes_on: Callable[[int], bool], until: Callable[[], float]) -> None:
        def over() -> float:
            patience = time.monotonic() + 60
            while self._busy > self._hung and time.monotonic() < patience:
                time.sleep(0.05)
            return until()

        super()._consume(goes_on, over)


def received(queues: world.Queues, name: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    while batch := queues.client.receive_message(
        QueueUrl=queues.url(name),
        MaxNumberOfMessages=10,
        VisibilityTimeout=600,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["All"],
    ).get("Messages"):
        letters += batch
    return letters


def error_of(letter: dict[str, Any]) -> str | None:
    attribute = letter.get("MessageAttributes", {}).get("error")
    return attribute["StringValue"] if attribute else None


def id_of(letter: dict[str, Any]) -> str:
    return letter["MessageAttributes"]["message_id"]["StringValue"]


def of_type(letters: list[dict[str, Any]], order_type: str) -> list[dict[str, Any]]:
    return [letter for letter in letters if f'"type": "{order_type}"' in letter["Body"]]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    folder = tmp_path_factory.mktemp("demo")
    try:
        program = world.find_ministack(servers.ROOT)
    except UsageError as error:
        servers.missing(str(error))
    slow = world.VISIBILITY_SECONDS * world.MAX_RECEIVES + 0.6
    with pytest.MonkeyPatch.context() as patch, ExitStack() as running:
        patch.setattr(world, "free_port", servers.free_port)  # nobody takes it before the server does
        endpoint = running.enter_context(world.embedded_server(program, folder))
        queues = world.make_queues(endpoint)
        with services.Shop(folder / "shop", slow_seconds=slow) as shop:
            sent = orders.make_orders(MESSAGES, seed=3)
            orders.publish(queues, sent)
            hung = world.MAX_RECEIVES * sum(json_type(message.body) == "gift.engrave" for message in sent)
            tally = Patient(queues, shop, hung).work_off(patience=0, limit=300)
            with shop.orders() as database:
                processed = {row[0] for row in database.execute("select message_id from processed")}
        yield Aftermath(
            sent,
            tally,
            received(queues, world.DEAD),
            received(queues, world.DELAY),
            queues.counts(world.ORDERS),
            processed,
        )


def test_no_message_is_lost_on_the_way(aftermath: Aftermath) -> None:
    somewhere = {id_of(letter) for letter in aftermath.dead + aftermath.delayed} | aftermath.processed

    assert aftermath.left.total == 0
    assert somewhere == {message.message_id for message in aftermath.sent}


@pytest.mark.parametrize("family", SELF_DEAD_LETTERED)
def test_every_failure_reached_the_dead_letter_queue_with_its_traceback(family: str, aftermath: Aftermath) -> None:
    texts = [text for letter in aftermath.dead if (text := error_of(letter))]
    found = [text for text in texts if any(words in text for words in SELF_DEAD_LETTERED[family])]

    assert found
    assert all("Traceback (most recent call last):" in text for text in found)
    assert all("consumer.py" in text for text in found)


@pytest.mark.parametrize("order_type", ["gift.wrap", "gift.engrave", "return.inspect"])
def test_the_queue_itself_dead_lettered_these_without_a_word(order_type: str, aftermath: Aftermath) -> None:
    letters = of_type(aftermath.dead, order_type)

    assert letters
    for letter in letters:
        assert error_of(letter) is None
        assert letter["Attributes"]["DeadLetterQueueSourceArn"].endswith(f":{world.ORDERS}")
        assert int(letter["Attributes"]["ApproximateReceiveCount"]) >= world.MAX_RECEIVES


def test_slow_work_was_done_and_dead_lettered_all_the_same(aftermath: Aftermath) -> None:
    wrapped = {id_of(letter) for letter in of_type(aftermath.dead, "gift.wrap")}

    assert wrapped
    assert wrapped <= aftermath.processed


def test_work_that_never_ended_was_not_done(aftermath: Aftermath) -> None:
    engraved = {id_of(letter) for letter in of_type(aftermath.dead, "gift.engrave")}

    assert not engraved & aftermath.processed
    assert aftermath.tally["abandoned"] >= len(engraved)


def test_try_later_went_to_the_delay_queue_whole(aftermath: Aftermath) -> None:
    asked = {m.message_id: m for m in aftermath.sent if json_type(m.body) == "stock.recheck"}

    assert {id_of(letter) for letter in aftermath.delayed} == set(asked)
    for letter in aftermath.delayed:
        original = asked[id_of(letter)]
        assert letter["Body"] == original.body
        assert set(letter["MessageAttributes"]) == set(original.attributes)


def test_some_duplicates_were_processed_under_the_same_id_and_some_were_not(aftermath: Aftermath) -> None:
    duplicates = [x for x in aftermath.dead if "UNIQUE constraint" in (error_of(x) or "")]
    done = [id_of(x) in aftermath.processed for x in duplicates]

    assert any(done)
    assert not all(done)


def test_bodies_and_trace_headers_survive_the_consumer(aftermath: Aftermath) -> None:
    sent = {message.message_id: message for message in aftermath.sent}

    for letter in aftermath.dead:
        original = sent[id_of(letter)]
        assert letter["Body"] == original.body
        assert letter["Attributes"].get("AWSTraceHeader", "") == original.trace


def json_type(body: str) -> str | None:
    try:
        return json.loads(body).get("type")
    except ValueError:
        return None
