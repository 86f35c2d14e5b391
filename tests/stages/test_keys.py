"""Keys of messages are those that the configuration names, also where it named others when they were loaded."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header
from redrive.stages import checking, pipeline
from redrive.stages.preview import preview
from tests.classifying import classify
from tests.lunch import in_time, lunch
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop, micros

#: By customer, then by order: what the consumer has processed is in two tables.
BY_CUSTOMER: dict[str, Any] = {
    "connection": "orders_db",
    "query": "select customer from served where customer in :keys",
    "key": "attribute:customer",
    "settle_after": "0s",
}
BY_ORDER = BY_CUSTOMER | {"query": "select number from done where number in :keys", "key": "attribute:number"}
DELAYED = {"causes": {"transient_network": {"verdict": "delay"}}}


class Shop(Workshop):
    """Whose route people edit, and whose consumer has a record."""

    def __init__(self, folder: Path, database: str, **route: Any) -> None:
        super().__init__(folder, database, **route)
        self._database = database
        with sqlite3.connect(folder / "shop.db") as record:
            record.executescript("create table served (customer text); create table done (number text);")
        record.close()

    def edit(self, **route: Any) -> None:
        self.settings = self.configure(self._database, **route)

    def done(self, *numbers: str) -> None:
        """The consumer has processed these orders."""
        with sqlite3.connect(self.folder / "shop.db") as record:
            record.executemany("insert into done values (?)", [(one,) for one in numbers])
        record.close()

    def dies(self, body: str, *, customer: str, number: str = "1", error: str = REFUSED) -> None:
        self.advance(seconds=1)
        headers = (
            Header("customer", "String", customer),
            Header("number", "String", number),
            Header("error", "String", error),
        )
        now = micros(self.now())
        letter = DeadLetter("", body.encode(), headers, origin="orders", enqueued_at=now, dead_lettered_at=now)
        self.world.put("orders-dlq", letter)

    def after(self, **delta: float) -> dict[str, Any]:
        """A run after some time."""
        self.advance(**delta)
        return self.cycle()

    def keys(self) -> list[Any]:
        return self.query("select message_key from messages order by message_id")

    def renewals(self) -> list[Any]:
        return self.query("select count from audit_events where action = 'renew_keys' order by event_id")


@pytest.fixture
def shops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ledger_url: str) -> Iterator[Any]:
    where = {"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(where))
    made: list[Shop] = []

    def open_one(**route: Any) -> Shop:
        made.append(Shop(tmp_path, ledger_url, **route))
        return made[-1]

    yield open_one
    for shop in made:
        assert shop.audit() == []
        shop.ledger.close()


# --- the processed check ------------------------------------------------------------------------------------


def test_a_customer_is_not_taken_for_an_order_with_the_same_number(shops: Any) -> None:
    """The check asked by customer, and the message waits; now it asks by order, and the order 17 is another one."""
    shop = shops(processed_check=BY_CUSTOMER, **DELAYED)
    shop.dies("order 99", customer="17", number="99")
    shop.dies("order 98", customer="18", number="98")
    shop.cycle()
    assert shop.keys() == [("17",), ("18",)]
    shop.edit(processed_check=BY_ORDER, **DELAYED)
    shop.done("17", "98")
    assert shop.after(minutes=10)["suppressed"] == 1
    assert shop.bodies("orders") == [b"order 99"]
    assert shop.keys() == [("99",), ("98",)]
    assert shop.query("select message_key_by, order_key_by from staging_batches") == [("attribute:number", None)]
    assert shop.renewals() == [(2,)]
    shop.after(minutes=10)
    assert shop.renewals() == [(2,)], "once"


def test_a_send_is_confirmed_by_its_own_order_alone(shops: Any) -> None:
    shop = shops(processed_check=BY_CUSTOMER)
    shop.dies("order 99", customer="17", number="99")
    shop.cycle()
    assert shop.states() == {"sent": 1}
    shop.edit(processed_check=BY_ORDER)
    shop.done("17")
    shop.after(minutes=1)
    assert shop.states() == {"sent": 1}
    shop.done("99")
    shop.after(minutes=1)
    assert shop.states() == {"confirmed": 1}


def test_an_unknown_send_that_was_processed_is_not_made_again(shops: Any) -> None:
    """Asked by its customer, the record of orders would not know it."""
    shop = shops(processed_check=BY_CUSTOMER)
    shop.dies("order 99", customer="17", number="99")
    shop.world.faults.lost_responses = 1
    assert shop.cycle()["unknown"] == 1
    shop.consume()
    shop.edit(processed_check=BY_ORDER)
    shop.done("99")
    shop.after(minutes=30)
    assert (shop.states(), shop.bodies("orders")) == ({"confirmed": 1}, [])


def test_a_dry_run_says_that_keys_are_taken_anew_first(shops: Any) -> None:
    """It still goes by those that there are: nothing is known by which a check could vouch for the message."""

    def bounds() -> list[str]:
        told = preview(shop.settings, "orders", Selection(), now=shop.now(), broker=shop.broker)["bounds"]
        return [one for one in told if "taken anew" in one]

    shop = shops()
    shop.dies("order 99", customer="17", number="99")
    shop.world.faults.lost_responses = 1
    assert shop.cycle()["unknown"] == 1
    assert bounds() == []
    shop.edit(processed_check=BY_ORDER)
    assert ["(batches: 1)" in one for one in bounds()] == [True]
    assert shop.renewals() == []
    shop.after(minutes=30)
    assert bounds() == []


def test_a_check_that_is_added_is_asked_about_what_waits(shops: Any) -> None:
    shop = shops(**DELAYED)
    shop.dies("order 99", customer="17", number="99")
    shop.cycle()
    assert shop.keys() == [(None,)]
    shop.edit(processed_check=BY_ORDER, **DELAYED)
    shop.done("99")
    shop.after(minutes=10)
    assert shop.states() == {"suppressed": 1}


def test_people_are_asked_where_the_order_of_another_was_processed(shops: Any) -> None:
    """The check gave no answer while it asked by customer, so nobody was asked yet."""
    shop = shops(processed_check=BY_CUSTOMER | {"query": "select customer from nowhere where customer in :keys"})
    shop.dies("order 99", customer="17", number="99", error=KEY_ERROR)
    shop.cycle()
    assert shop.states() == {"to_review": 1}
    shop.edit(processed_check=BY_ORDER)
    shop.done("17")
    shop.after(minutes=1)
    assert shop.states() == {"escalated": 1}
    assert shop.query("select message_key from escalated_messages") == [("99",)]


def test_people_see_the_key_that_the_check_is_asked_by(shops: Any) -> None:
    """They were asked before the edit. A row that somebody keeps open says the former one, and keeps no run waiting."""
    shop = shops(processed_check=BY_CUSTOMER)
    shop.dies("order 99", customer="17", number="99", error=KEY_ERROR)
    shop.dies("order 98", customer="18", number="98", error=KEY_ERROR)
    shop.cycle()
    seen = "select message_key, status from escalated_messages order by message_id"
    assert shop.query(seen) == [("17", "open"), ("18", "open")]
    shop.edit(processed_check=BY_ORDER)
    with ExitStack() as away:
        at_it = shop.ledger.dialect.locked
        if at_it:
            away.enter_context(lunch(shop, "update escalated_messages set note = 'hm' where message_key = '17'"))
        in_time(lambda: shop.after(minutes=1))
    assert shop.query(seen) == [("17" if at_it else "99", "open"), ("98", "open")]
    assert shop.keys() == [("99",), ("98",)]


def test_one_that_comes_back_after_the_edit_has_the_key_that_is_asked_for(shops: Any) -> None:
    """When the configuration was edited, it was finished, and nobody looked at its keys."""
    canary = {"first": 20, "grow": 10, "pass": 0.5, "observe": "1s"}
    shop = shops(processed_check=BY_CUSTOMER, canary=canary)
    shop.dies("order 99", customer="17", number="99")
    shop.cycle()
    [taken] = shop.broker.receive("orders", limit=1, wait=timedelta(0), lease=timedelta(minutes=1))
    shop.broker.settle("orders", [taken[1]])
    for _ in range(3):
        shop.after(minutes=5)
    assert shop.states() == {"presumed": 1}
    shop.edit(processed_check=BY_ORDER, canary=canary, **DELAYED)
    shop.after(minutes=5)
    assert shop.keys() == [("17",)]
    shop.done("17")
    letter = taken[0]
    shop.world.put("orders-dlq", letter._replace(headers=(*letter.headers, Header("error", "String", REFUSED))))
    assert shop.after(minutes=5)["returned"] == 1
    assert shop.keys() == [("99",)]
    shop.after(hours=1)
    assert shop.states() == {"sent": 1}


def test_one_whose_file_is_damaged_is_not_asked_about_by_the_key_of_something_else(
    shops: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shops(processed_check=BY_CUSTOMER, **DELAYED)
    shop.dies("order 99", customer="17", number="99")
    shop.cycle()
    shop.dies("order 98", customer="18", number="98")
    shop.cycle()
    shop.edit(processed_check=BY_ORDER, **DELAYED)
    shop.done("17")
    (path, *_) = sorted((shop.folder / "staging" / "orders").rglob("*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(b"")
    shop.after(minutes=10)
    assert shop.states() == {"escalated": 1, "sent": 1}, "people have the one, and nobody waits for it"
    [(reason,)] = shop.query("select reason from escalated_messages")
    assert reason.startswith(checking.REFUSED)
    assert "keys of batch 1 can't be taken anew" in caplog.text
    path.write_bytes(whole)
    shop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'it is back'")
    shop.after(minutes=10)
    shop.after(minutes=10)
    assert shop.states() == {"sent": 2}
    assert shop.keys() == [("99",), ("98",)]


def test_keys_are_those_that_the_job_was_asked_for(shops: Any) -> None:
    """The file is edited between the question and the load, by a run that does not keep what it began with."""
    shop = shops(processed_check=BY_CUSTOMER, order_by="attribute:number")
    shop.dies("order 99", customer="17", number="99")
    run = shop.begin()
    shop.drain(run)
    manifest = pipeline.prepare_classification(shop.settings, run, **shop.options())
    assert manifest is not None
    classify(manifest)
    shop.edit(processed_check=BY_ORDER)
    pipeline.load(shop.settings, run, **shop.options())
    by = "select message_key_by, order_key_by from staging_batches"
    assert shop.query(by) == [("attribute:customer", "attribute:number")]
    pipeline.resolve(shop.settings, run, **shop.options())
    assert shop.query(by) == [("attribute:number", "attribute:number")]
    assert shop.keys() == [("99",)]
    pipeline.finish(shop.settings, run, "succeeded", shop.now)


def test_what_people_release_between_two_runs_is_asked_about_by_its_own_key(shops: Any) -> None:
    """The review delivers without a look at past sends before."""
    shop = shops(processed_check=BY_CUSTOMER)
    shop.dies("order 99", customer="17", number="99", error=KEY_ERROR)
    shop.cycle()
    shop.change("update escalated_messages set decision = 'redeliver', decided_by = 'ana', note = 'mended'")
    shop.review()
    shop.edit(processed_check=BY_ORDER)
    shop.done("17")
    run = shop.begin()
    assert shop.deliver(run)["redelivered"] == 1
    pipeline.finish(shop.settings, run, "succeeded", shop.now)
    assert shop.keys() == [("99",)]


# --- order --------------------------------------------------------------------------------------------------


def test_what_was_loaded_without_an_order_goes_first_once_there_is_one(shops: Any) -> None:
    slow = {"backoff": {"first": "1h", "factor": 1, "max": "1h", "least": "50m"}}
    shop = shops(**slow)
    shop.dies("ana's first", customer="ana", error=THROTTLED)
    shop.cycle()
    shop.edit(order_by="attribute:customer", backoff={"first": "1m", "factor": 1, "max": "1h"})
    shop.dies("ana's second", customer="ana")
    shop.dies("bob's", customer="bob")
    shop.after(minutes=5)
    assert shop.bodies("orders") == [b"bob's"]
    shop.consume()
    shop.after(hours=2)
    assert shop.bodies("orders") == [b"ana's first"]


def test_what_is_under_review_holds_later_ones_also_by_another_order(shops: Any) -> None:
    shop = shops(order_by="attribute:number")
    shop.dies("create", customer="ana", number="1", error=KEY_ERROR)
    shop.after(minutes=1)
    shop.edit(order_by="attribute:customer")
    shop.dies("update", customer="ana", number="2")
    shop.after(minutes=1)
    shop.after(minutes=5)
    assert shop.bodies("orders") == []
    assert shop.states() == {"escalated": 1, "waiting": 1}
    shop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'it is late'")
    shop.after(minutes=5)
    shop.after(minutes=5)
    assert shop.bodies("orders") == [b"update"]


def test_an_order_that_is_taken_away_and_put_back_is_whole(shops: Any) -> None:
    shop = shops(order_by="attribute:customer")
    shop.dies("first", customer="ana", error=KEY_ERROR)
    shop.after(minutes=1)
    shop.edit()
    shop.dies("second", customer="ana", error=KEY_ERROR)
    shop.after(minutes=1)
    assert shop.query("select order_key from messages order by message_id") == [("ana",), (None,)]
    shop.edit(order_by="attribute:customer")
    shop.after(minutes=1)
    assert shop.query("select order_key from messages order by message_id") == [("ana",), ("ana",)]
    assert shop.renewals() == [(1,)], "the first one has its key still"
