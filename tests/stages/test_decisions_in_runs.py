"""What people decided is carried out also where the route is never free: by its runs. And nobody waits for people."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from redrive.errors import RouteBusy
from redrive.ledger.engine import sql
from redrive.ledger.review import applying, rulings, standing
from redrive.ledger.selecting import Selection
from redrive.stages.preview import preview
from tests.lunch import in_time, lunch
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


@pytest.fixture
def two_failures(tmp_path: Path, postgres_database: str) -> Iterator[Workshop]:
    """A workshop in which people are asked about two messages of one failure, and two of another."""
    shop = Workshop(tmp_path, postgres_database)
    shop.die("a", "b", error=KEY_ERROR)
    shop.die("c", "d", error="ZeroDivisionError: division by zero")
    shop.cycle()
    yield shop
    shop.ledger.close()


STANDING = (
    "insert into standing_decisions (route, group_id, decision, decided_by, note, until_at)"
    " values (null, {}, 'discard', 'ben', 'known', '2100-01-01')"
)


@pytest.mark.server
class TestNobodyWaitsForWhoIsAtLunch:
    """On PostgreSQL: SQLite has one writer at a time."""

    def test_over_a_question_whose_message_goes_elsewhere_now(self, two_failures: Workshop) -> None:
        shop = two_failures
        shop.world.create("new", lease=timedelta(minutes=5))
        shop.settings = shop.configure(shop.settings.database, destination={"queue": "new"})
        with lunch(shop, DECIDED.format("redeliver", "'a'")) as person:
            in_time(shop.cycle)
            to = "select payload, {0}.destination from messages inner join escalated_messages using (message_id)"
            for table in ("messages", "escalated_messages"):
                assert sorted(shop.query(to.format(table))) == [
                    ("a", "orders"),
                    *((one, "new") for one in "bcd"),
                ], "it follows when the person has ended"
            person.commit()
        assert shop.review()["released"] == 1
        shop.cycle()
        assert (shop.bodies("orders"), shop.bodies("new")) == ([], [b"a"])
        assert shop.query(f"{to.format('escalated_messages')} where payload = 'a'") == [("a", "new")]
        assert shop.audit() == []

    @pytest.mark.parametrize("decision", ["discard", "redeliver"])
    def test_over_a_question_whose_answer_comes_meanwhile(
        self, tmp_path: Path, postgres_database: str, decision: str
    ) -> None:
        """What they decide then was about whether it had been sent, and is not carried out on what came back."""
        shop = Workshop(tmp_path, postgres_database, on_unknown="review")
        shop.die("a")
        shop.world.faults.lost_responses = 1
        shop.cycle()
        assert shop.cycle()["escalated"] == 1
        shop.consume(lambda _: KEY_ERROR)
        with lunch(shop, DECIDED.format(decision, "'a'")) as person:
            in_time(shop.cycle)
            person.commit()
        assert (shop.review()["released"], shop.states()) == (0, {"to_review": 1})
        shop.cycle()
        assert shop.query("select status, decision, error_text from escalated_messages") == [
            ("reopened", None, KEY_ERROR)
        ]
        assert (shop.states(), shop.bodies("orders"), shop.audit()) == ({"escalated": 1}, [], [])
        shop.ledger.close()

    def test_over_a_question_about_a_group_that_was_merged(self, two_failures: Workshop) -> None:
        rulings.make(two_failures.ledger, "merge", 2, other=1, by="ben", note="same fix")
        groups = "select payload, group_id from escalated_messages order by payload"
        with lunch(two_failures, DECIDED.format("discard", "'c'")) as person:
            in_time(two_failures.review)
            assert two_failures.query(groups) == [("a", 1), ("b", 1), ("c", 2), ("d", 1)]
            person.rollback()
        two_failures.review()
        assert two_failures.query(groups) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]

    @pytest.mark.parametrize("carried_out", [False, True])
    def test_over_a_word_about_groups_that_is_taken_back(self, two_failures: Workshop, carried_out: bool) -> None:
        two_failures.die("later", error="ZeroDivisionError: division by zero")
        made = rulings.make(two_failures.ledger, "merge", 2, other=1, by="ben", note="same fix")
        if carried_out:  # and not any more, as a split after it was taken back
            two_failures.review()
            with two_failures.ledger.write() as connection:
                connection.exec_driver_sql("delete from group_aliases")
        with lunch(two_failures, f"update group_rulings set revoked_by = 'ben' where ruling_id = {made}") as person:
            in_time(two_failures.cycle)
            assert two_failures.query("select group_id from group_aliases") == []
            person.rollback()
        two_failures.review()
        assert two_failures.query("select group_id, merged_into from group_aliases") == [(2, 1)]

    def test_over_the_end_of_a_decision_that_stands(self, two_failures: Workshop) -> None:
        shop = two_failures
        with shop.ledger.write() as connection:
            for decision, group in (("redeliver", 1), ("discard", 2)):
                connection.exec_driver_sql(STANDING.replace("'discard'", f"'{decision}'").format(group))
            # Of its two the one that is ended at this moment is the newest: the older one does not step in for it.
            connection.exec_driver_sql(STANDING.format(1))
            connection.exec_driver_sql("update messages set changed_at = now()")
        shop.advance(days=1000)
        shop.die("later", error=KEY_ERROR)
        shop.die("too", error="ZeroDivisionError: division by zero")
        with lunch(shop, "update standing_decisions set revoked_by = 'ben' where standing_id = 3") as person:
            in_time(shop.cycle)
            in_time(shop.review)
            decided = "select payload, decision from escalated_messages where decision is not null order by payload"
            assert shop.query(decided) == [("too", "discard")]
            person.commit()
        shop.review()
        assert shop.query(decided) == [("later", "redeliver"), ("too", "discard")]

    @pytest.mark.parametrize(
        "statement",
        [
            STANDING.format(1),
            "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
            " values ('merge', 2, 1, 'ana', 'same fix')",
            "insert into failure_issues (route, group_id, written_by) values ('orders', 1, 'ana')",
            "insert into issue_comments (route, group_id, written_by, text) values ('orders', 1, 'ana', 'hm')",
        ],
    )
    def test_over_a_word_about_a_group_of_which_more_comes(self, two_failures: Workshop, statement: str) -> None:
        with lunch(two_failures, statement):
            two_failures.die("later", error=KEY_ERROR)
            assert in_time(two_failures.cycle)["new"] == 1

    def test_over_a_decision_that_is_to_stand(self, two_failures: Workshop) -> None:
        """What loads and merges went on meanwhile; the decision learns of it when it is to hold."""
        shop = two_failures
        with lunch(shop, STANDING.format(2)) as person:
            shop.die("later", error="ZeroDivisionError: division by zero")
            in_time(shop.cycle)
            rulings.make(shop.ledger, "merge", 2, other=1, by="ana", note="same fix")
            assert in_time(shop.review)["released"] == 0
            assert shop.query("select group_id, merged_into from group_aliases") == [(2, 1)]
            with pytest.raises(sa.exc.DatabaseError, match="group 2 was merged into group 1"):
                person.commit()
        with shop.ledger.read() as connection:
            assert standing.in_force(connection, "orders", approvals=1, now=shop.now()) == []
