"""What people decided is carried out also where the route is never free: by its runs."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from redrive.errors import RouteBusy
from redrive.ledger.engine import sql
from redrive.ledger.review import applying
from redrive.ledger.selecting import Selection
from redrive.stages.preview import preview
from tests.workshop import KEY_ERROR, Workshop

DECIDED = "update escalated_messages set decision = '{}', decided_by = 'ana' where payload in ({})"


def decide(shop: Workshop, decision: str, *bodies: str) -> None:
    with shop.ledger.write() as connection:
        connection.exec_driver_sql(DECIDED.format(decision, ", ".join(f"'{body}'" for body in bodies)))


@pytest.fixture
def asked(tmp_path: Path, ledger_url: str) -> Iterator[Workshop]:
    """A workshop in which people are asked about three messages."""
    shop = Workshop(tmp_path, ledger_url)
    shop.die("a", "b", "c", error=KEY_ERROR)
    shop.cycle()
    yield shop
    shop.ledger.close()


def test_one_run_after_the_other_keeps_no_decision_waiting(asked: Workshop) -> None:
    busy = asked.begin()
    decide(asked, "redeliver", "a")
    decide(asked, "discard", "b")
    with pytest.raises(RouteBusy):
        asked.review()  # as the review's DAG finds it each time
    for _ in asked.stages(busy):
        pass

    assert asked.bodies("orders") == [b"a"]
    assert asked.query("select payload, status from escalated_messages order by payload") == [
        ("a", "applied"),
        ("b", "applied"),
        ("c", "open"),
    ]
    assert asked.states() == {"sent": 1, "discarded": 1, "escalated": 1}
    assert asked.audit() == []


def test_the_counts_of_a_run_say_what_it_carried_out_and_nothing_where_it_did_not(asked: Workshop) -> None:
    asked.cycle()
    decide(asked, "redeliver", "a")
    asked.cycle()
    counts = [text for (text,) in asked.query("select counts from runs order by fence")]
    assert ['"review"' in str(text) for text in counts] == [False, False, True]


def test_a_dry_run_says_that_decisions_come_first(asked: Workshop) -> None:
    def bounds() -> list[str]:
        found = preview(asked.settings, "orders", Selection(), now=asked.now(), broker=asked.broker)["bounds"]
        return [one for one in found if "decisions" in one]

    assert bounds() == []
    decide(asked, "redeliver", "a", "b")
    (told,) = bounds()
    assert told.startswith("2 decisions are carried out first")


def test_one_that_a_second_person_has_not_seen_waits(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, approvals=2)
    shop.die("a", error=KEY_ERROR)
    shop.cycle()
    decide(shop, "redeliver", "a")
    shop.cycle()
    assert shop.states() == {"escalated": 1}
    told = preview(shop.settings, "orders", Selection(), now=shop.now(), broker=shop.broker)["bounds"]
    assert not [one for one in told if "decisions" in one]
    shop.ledger.close()


def test_what_is_still_to_be_sent_is_found_whoever_applied_it_and_whenever(asked: Workshop) -> None:
    def to_send() -> list[str]:
        with asked.ledger.read() as connection:
            return applying.to_send(connection, asked.now())

    assert to_send() == []
    decide(asked, "redeliver", "a")
    assert to_send() == [], "not applied"
    asked.review()
    assert to_send() == ["orders"]
    asked.advance(days=2)
    assert to_send() == ["orders"]
    with asked.ledger.write() as connection:
        connection.execute(sql("update route_state set paused_at = :now, paused_by = 'ana'"), {"now": asked.now()})
    assert to_send() == [], "paused"
    with asked.ledger.write() as connection:
        connection.exec_driver_sql("update route_state set paused_at = null, paused_by = null")
        stopped = {"now": asked.now(), "until": asked.now() + timedelta(minutes=1)}
        connection.execute(
            sql(
                "insert into breakers (route, destination, stage, cool_down_until, stage_at, began_at)"
                " values ('orders', 'orders', 'tripped', :until, :now, :now)"
            ),
            stopped,
        )
    assert to_send() == [], "its destination is stopped"
    asked.advance(minutes=2)
    assert to_send() == ["orders"]
    asked.cycle()
    assert to_send() == [], "sent"


@pytest.mark.server
def test_somebody_who_left_a_transaction_open_keeps_nobody_waiting(tmp_path: Path, postgres_database: str) -> None:
    shop = Workshop(tmp_path, postgres_database)
    shop.die("a", "b", "c", error=KEY_ERROR)
    shop.cycle()
    decide(shop, "redeliver", "a", "b")
    elsewhere = sa.create_engine(shop.ledger.url)
    with elsewhere.connect() as lunch:
        over_a_and_c = DECIDED.format("discard", "'a', 'c'")
        lunch.exec_driver_sql(f"set search_path to redrive; {over_a_and_c}")
        done: list[dict[str, int]] = []
        waiting = threading.Thread(target=lambda: done.append(shop.review()), daemon=True)
        waiting.start()
        waiting.join(20)
        assert done, "it waits for somebody who is at lunch"
        assert (done[0]["released"], done[0]["discarded"]) == (1, 0)
        lunch.commit()
    assert shop.review()["discarded"] == 2, "what was decided in the end"
    elsewhere.dispose()
    shop.ledger.close()


@pytest.mark.server
def test_nor_does_a_standing_decision_wait_for_somebody(tmp_path: Path, postgres_database: str) -> None:
    shop = Workshop(tmp_path, postgres_database)
    shop.die("a", "b", error=KEY_ERROR)
    before = shop.now() - timedelta(seconds=1)
    shop.cycle()
    elsewhere = sa.create_engine(shop.ledger.url)
    with elsewhere.connect() as lunch:
        over_a = DECIDED.format("redeliver", "'a'")
        lunch.exec_driver_sql(f"set search_path to redrive; {over_a}")
        with shop.ledger.write() as connection:
            connection.execute(
                sql(
                    "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
                    " select 'orders', group_id, 'discard', 'ben', 'known', :since, :until from messages limit 1"
                ),
                {"since": before, "until": shop.now() + timedelta(days=1)},
            )
        done: list[dict[str, int]] = []
        waiting = threading.Thread(target=lambda: done.append(shop.review()), daemon=True)
        waiting.start()
        waiting.join(20)
        assert done, "it waits for somebody who is at lunch"
        assert done[0]["discarded"] == 1
        lunch.rollback()
    assert shop.review()["discarded"] == 1, "nobody decided it after all"
    elsewhere.dispose()
    shop.ledger.close()
