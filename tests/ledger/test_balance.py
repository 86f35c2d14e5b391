"""It adds up, and where somebody or something breaks it, the audit says so."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from redrive.ledger import schema
from redrive.ledger.account import balance
from redrive.ledger.drain import batches
from redrive.ledger.engine import Ledger, sql
from redrive.lifecycle import FINISHED, State
from redrive.stages import doctor, pipeline
from tests.ledger.planting import entering
from tests.ledger.test_escalations import person
from tests.workshop import KEY_ERROR, REFUSED, THROTTLED, Workshop


def live(workshop: Workshop) -> None:
    """Some of everything happens: sent, returned, escalated, waiting, a duplicate."""
    workshop.die("a", "b", "c", error=REFUSED)
    workshop.die("d", "e", error=KEY_ERROR)
    workshop.die("f", error=THROTTLED)
    again = workshop.world.peek("orders-dlq")[0]
    workshop.cycle()
    workshop.consume(lambda letter: REFUSED if letter.body == b"a" else None)
    workshop.world.put("orders-dlq", again)
    workshop.cycle()
    assert workshop.audit() == []


@pytest.fixture
def lived(workshop_after: Callable[..., Workshop]) -> Workshop:
    """A ledger with some of everything."""
    return workshop_after(live)


KEPT = ("escalated_messages", "messages", "redelivery_attempts", "repeat_copies", "staging_batches")


def let_delete(ledger: Ledger, connection: Connection) -> None:
    for table in KEPT:
        connection.execute(
            sql(f"drop trigger if exists {table}_stay" + ("" if ledger.dialect.name == "sqlite" else f" on {table}"))
        )


def change(workshop: Workshop, statement: str) -> None:
    """As in a ledger of an older version, or by somebody who removed the triggers that refuse it."""
    with workshop.ledger.write() as connection:
        let_delete(workshop.ledger, connection)
        assert connection.execute(sql(statement)).rowcount >= 1, "the corruption has to be real"


ONE = "(select min(message_id) from messages)"
SENT = "(select min(message_id) from messages where state = 'sent')"
CORRUPTIONS = {
    "a message is lost": f"delete from messages where message_id = {ONE}",
    "a message appears": (
        "insert into messages (message_id, redrive_id, route, source, kind, broker_message_id, body_hash, body_bytes,"
        " copy_id, state, changed_at) select message_id + 500, 'forged', route, source, kind, 'x', body_hash, 1, 1,"
        f" 'presumed', changed_at from messages where message_id = {ONE}"
    ),
    "a batch claims more copies": "update staging_batches set copies = copies + 1 where batch_id = 1",
    "a batch claims fewer copies": "update staging_batches set copies = copies - 1 where batch_id = 1",
    "a batch's messages are miscounted": "update staging_batches set new_copies = new_copies - 1 where batch_id = 1",
    "more is settled than recorded": "update staging_batches set settled_copies = 1000 where batch_id = 1",
    "a loaded batch is not loaded any more": "update staging_batches set loaded_at = null where batch_id = 1",
    "a batch is lost": "delete from staging_batches where batch_id = 1",
    "a repeat is lost": "delete from repeat_copies where kind = 'duplicate'",
    "an attempt is lost": (f"delete from redelivery_attempts where message_id = {SENT}"),
    "an attempt is not counted": (f"update messages set attempts = 0 where message_id = {SENT}"),
    "an escalation is lost": "delete from escalated_messages where escalation_id = 1",
    "an escalation is closed by hand": (
        "update escalated_messages set status = 'applied', decision = 'discard', decided_by = 'x'"
        " where escalation_id = 1"
    ),
    "a review row stays open": (
        "update messages set state = 'suppressed', plan = null"
        " where message_id = (select min(message_id) from escalated_messages)"
    ),
    "a review row is there twice": (
        "insert into escalated_messages (message_id, route, reason, size_bytes, source, attempts, escalated_at) select"
        " message_id, route, reason, size_bytes, source, attempts, escalated_at from escalated_messages"
        " where escalation_id = 1"
    ),
    "a message hangs in sending": (f"update messages set state = 'sending' where message_id = {SENT}"),
    "a message is on another route": f"update messages set route = 'billing' where message_id = {ONE}",
}


@pytest.mark.parametrize("statement", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_what_is_broken_by_sql_is_found_and_says_what_to_do(lived: Workshop, statement: str) -> None:
    change(lived, statement)
    assert lived.audit() != []
    with lived.ledger.read() as connection:
        found = balance.problems(connection, "orders", thorough=True)
    assert all("`audit_events`" in problem or "`redrive escalate orders`" in problem for problem in found), found


def test_errors_that_cancel_each_other_out_are_found(lived: Workshop) -> None:
    change(lived, CORRUPTIONS["a message is lost"])
    change(lived, CORRUPTIONS["a message appears"].replace("message_id + 500", "message_id + 5000000"))
    assert any("new copies are not its messages" in problem for problem in lived.audit())


def files(workshop: Workshop) -> list[Path]:
    return sorted((workshop.folder / "staging").rglob("*.parquet"))


def _swap(paths: list[Path]) -> None:
    paths[0].write_bytes(paths[1].read_bytes())


BROKEN_FILES: dict[str, Callable[[list[Path]], object]] = {
    "deleted": lambda paths: paths[0].unlink(),
    "empty": lambda paths: paths[0].write_bytes(b""),
    "truncated": lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:-20]),
    "half": lambda paths: paths[0].write_bytes(paths[0].read_bytes()[: paths[0].stat().st_size // 2]),
    "overwritten": lambda paths: paths[0].write_bytes(b"PAR1 nonsense PAR1"),
    "another batch's": _swap,
}


@pytest.mark.parametrize("damage", BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_damaged_staging_file_is_found_and_named(lived: Workshop, damage: Callable[[list[Path]], object]) -> None:
    paths = files(lived)
    assert len(paths) >= 2
    damage(paths)
    problems = lived.audit()
    assert len(problems) == 1
    assert problems[0].startswith("batch 1 of route orders")


def test_an_audit_of_one_route_leaves_others_out(lived: Workshop) -> None:
    change(lived, CORRUPTIONS["a message is lost"])
    assert pipeline.audit(lived.settings, "orders", now=lived.now())["problems"] != []
    assert pipeline.audit(lived.settings, "billing", now=lived.now())["problems"] == []


def test_the_balance_of_a_route_tells_where_every_copy_and_message_is(lived: Workshop) -> None:
    columns = ("recorded", "new", "returned", "duplicate", "surplus", "suspected", "staged", "messages")
    (row,) = lived.query(f"select {', '.join(columns)} from message_balance")
    assert dict(zip(columns, map(int, row), strict=True)) == {
        "recorded": 8,
        "new": 6,
        "returned": 1,
        "duplicate": 1,
        "surplus": 0,
        "suspected": 0,
        "staged": 0,
        "messages": 6,
    }


def leave_a_batch_open(workshop: Workshop) -> None:
    run = workshop.begin()
    batches.open_batch(
        workshop.ledger, run.lease, source="orders-dlq", kind="dead_letter", shard=0,
        path_of=lambda *_: "orders/gone.parquet", now=workshop.now(),
    )  # fmt: skip
    pipeline.finish(workshop.settings, run, "failed", workshop.now)


def test_a_batch_whose_writer_vanished_is_abandoned_by_the_audit(lived: Workshop) -> None:
    leave_a_batch_open(lived)
    assert lived.audit() == []
    lived.advance(hours=2)
    found = pipeline.audit(lived.settings, now=lived.now())
    assert (found["abandoned"], found["problems"]) == (1, [])


def test_a_batch_is_left_to_its_writer_for_as_long_as_its_lease_may_last(lived: Workshop) -> None:
    """With a lease of 12 hours a drain closes its batches only every six."""
    lived.settings = lived.configure(str(lived.settings.database), drain={"wait": "0s", "lease": "12h"})
    leave_a_batch_open(lived)
    lived.advance(hours=7)
    assert pipeline.audit(lived.settings, now=lived.now())["abandoned"] == 0
    lived.advance(hours=6)
    assert pipeline.audit(lived.settings, now=lived.now())["abandoned"] == 1


# --- what is refused at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", KEPT)
def test_what_is_not_finished_is_not_deleted_by_hand(lived: Workshop, table: str) -> None:
    with pytest.raises(DBAPIError, match=r"not deleted|retention removes"), lived.ledger.write() as connection:
        connection.execute(sql(f"delete from {table}"))
    assert lived.audit() == []
    if lived.ledger.dialect.name != "sqlite":
        with pytest.raises(DBAPIError, match="is not truncated"), lived.ledger.write() as connection:
            connection.execute(sql(f"truncate {table}"))


@pytest.mark.parametrize("state", list(State))
def test_a_message_and_its_review_row_can_go_exactly_when_it_is_finished(lived: Workshop, state: State) -> None:
    one = "message_id = (select min(message_id) from escalated_messages)"
    with lived.ledger.write() as connection:
        connection.execute(sql(f"update messages set {entering(state)} where {one}"))
    for table in ("messages", "escalated_messages"):
        with contextlib.ExitStack() as stack:
            if state not in FINISHED:
                stack.enter_context(pytest.raises(DBAPIError))
            with lived.ledger.write() as connection:
                assert connection.execute(sql(f"delete from {table} where {one}")).rowcount == 1


def test_the_next_run_asks_again_where_a_review_row_was_deleted_all_the_same(lived: Workshop) -> None:
    before = lived.query("select message_id, payload, error_text from escalated_messages order by message_id")
    change(lived, "delete from escalated_messages")
    assert any("asks again" in problem for problem in lived.audit())
    (told,) = [one for one in doctor.examine(lived.settings, ["orders"]) if one.subject == "orders: review"]
    assert told.level == "error"
    assert "`redrive escalate orders`, writes them anew" in told.text
    lived.cycle()
    assert lived.audit() == []
    after = lived.query("select message_id, payload, error_text, status from escalated_messages order by message_id")
    assert after == [(*row, "open") for row in before]
    assert lived.query("select distinct action from audit_events where action = 'ask'") == [("ask",)]


def test_what_is_counted_as_it_ends_is_what_is_there(lived: Workshop) -> None:
    person(lived, "update escalated_messages set decision = 'discard', decided_by = 'ana'")
    lived.review()
    with lived.ledger.read() as connection:
        told = balance.of_route(connection, "orders")
        (row,) = connection.execute(sql("select * from message_balance where route = 'orders'")).mappings()
        assert told == {name: value if isinstance(value, str) else int(value) for name, value in row.items()}
        assert list(told) == list(row), "in the view's order"
        assert sum(told[state] for state in FINISHED) > 0
        assert balance.of_route(connection, "nowhere") == {}


def test_what_is_counted_otherwise_is_found_and_counted_anew(lived: Workshop) -> None:
    change(lived, "insert into finished_counts (route, state, messages) values ('orders', 'discarded', 2)")
    (problem,) = lived.audit()
    assert "2 finished messages are counted otherwise" in problem
    schema.upgrade(lived.ledger, lived.now())
    assert lived.audit() == [problem], "an upgrade reads no year of messages"
    assert "`redrive db upgrade --count-anew`" in problem
    schema.upgrade(lived.ledger, lived.now(), count_anew=True)
    assert lived.audit() == []


def test_a_finished_message_that_counts_no_attempt_and_has_none_is_found(lived: Workshop) -> None:
    never_sent = "(select min(message_id) from messages where attempts = 0)"
    change(lived, f"update messages set state = 'presumed', plan = null where message_id = {never_sent}")
    assert any("1 finished messages whose attempt is missing" in problem for problem in lived.audit())
