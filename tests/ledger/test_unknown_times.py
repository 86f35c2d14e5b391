"""A time that nobody told sorts alike on both databases, of which one has it first and the other last."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from redrive.ledger import tables
from redrive.ledger.account import inspecting
from redrive.ledger.engine import Instant, sql
from redrive_ui import result_queries, route_queries
from tests.ledger.planting import NOW, Plant

ROOT = Path(__file__).parents[2]
MINUTE = timedelta(minutes=1)
#: Names that views give to times that may be missing, beside the tables' own columns.
ALIASES = {"oldest", "last_decided_at"}


def nullable_times() -> set[str]:
    """Names of times that may be missing, in whatever table a column of that name is."""
    times = [
        (column.name, column.nullable)
        for table in tables.metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, Instant)
    ]
    return ALIASES | {name for name, _ in times} - {name for name, nullable in times if not nullable}


def terms(text: str) -> Iterator[str]:
    """What each ORDER BY of a source sorts by, term by term."""
    joined = re.sub(r"\"\s*\n\s*f?\"", "", text)  # a string that is written over several lines
    for found in re.finditer(r"\border by\s", joined):
        depth, term = 0, ""
        for piece in re.findall(r"\blimit\b|\n\n|.", joined[found.end() :][:500], re.DOTALL):
            depth += {"(": 1, ")": -1}.get(piece, 0)
            if depth < 0 or piece in ("limit", "\n\n", ";", '"', "'", "{"):
                break
            if piece == "," and not depth:
                yield " ".join(term.split())
                term = ""
            else:
                term += piece
        yield " ".join(term.split())


def test_every_order_by_a_time_that_may_be_missing_says_where_it_goes() -> None:
    names = nullable_times()
    assert {"first_enqueued_at", "decided_at", "drained_to"} <= names
    looked_at, silent = 0, []
    for file in [
        *ROOT.glob("plugins/**/*.py"),
        *ROOT.glob("plugins/**/*.sql"),
        *ROOT.glob("sql/**/*.sql"),
        *ROOT.glob("docs/**/*.md"),
    ]:
        for term in terms(file.read_text()):
            looked_at += 1
            column = re.fullmatch(r"(?:(?:max|min)\()?(?:\w+\.)?(\w+)\)?( asc| desc)?", term)
            if column and column[1] in names:
                silent.append(f"{file.relative_to(ROOT)}: order by {term}")
    assert looked_at > 60
    # What ordering.first sorts by this time is never NULL there, and a decision that was applied was taken some time.
    assert sorted(silent) == [
        "plugins/redrive/ledger/delivery/ordering.py: order by first.first_enqueued_at",
        *["plugins/redrive/ledger/views/review_groups.sql: order by answered.decided_at desc"] * 2,
    ]


def test_the_reader_of_order_bys_sees_them() -> None:
    assert list(terms('x = "select 1 order by a.b desc,"\n    " max(c) limit 3"')) == ["a.b desc", "max(c)"]
    assert list(terms("over (partition by route order by at) as n\norder by\n  coalesce(a, b), c desc\n")) == [
        "at", "coalesce(a, b)", "c desc",
    ]  # fmt: skip


def test_of_an_order_key_those_without_a_time_go_first_as_they_were_staged(plant: Plant) -> None:
    at = plant.ledger.dialect.stored(NOW)
    _, (timed, late, early) = plant.load(
        {"body": b"1", "order_key": "k", "enqueued_at": at},
        {"body": b"2", "order_key": "k", "enqueued_at": None},
        {"body": b"3", "order_key": "k", "enqueued_at": plant.ledger.dialect.stored(NOW - MINUTE)},
    )
    _, (last,) = plant.load({"body": b"4", "order_key": "k", "enqueued_at": None})
    went = []
    for _ in range(4):
        plant.make_due()
        claimed = plant.claim(in_order=True)
        assert claimed is not None
        ((sent,),) = plant.rows("select message_id from redelivery_attempts where slice_id = :id", id=claimed.slice_id)
        went.append(sent)
        plant.change("update messages set state = 'presumed' where message_id = :id", id=sent)
    assert went == [late, last, early, timed]


def test_a_source_that_was_never_drained_is_the_least_drained(plant: Plant) -> None:
    for source, at in (("a", NOW), ("b", None), ("c", NOW - MINUTE)):
        plant.change(
            "insert into source_state (route, source, drained_to) values ('orders', :source, :at)", source=source, at=at
        )
    with plant.ledger.read() as connection:
        least = inspecting.status(connection, "orders", NOW)["watching"]["least_drained"]
    assert (least["source"], least["drained_to"]) == ("b", None)


def test_percentiles_are_of_the_messages_whose_age_is_known(plant: Plant) -> None:
    plant.messages(1)
    plant.messages(9, enqueued_at=None)
    plant.send()
    plant.change("update messages set state = 'presumed'")
    plant.change("update redelivery_attempts set outcome = 'presumed', outcome_at = :at", at=NOW + MINUTE)
    ((p50, p99),) = plant.rows("select p50_seconds, p99_seconds from route_summary")
    assert [round(float(one)) for one in (p50, p99)] == [60, 60]


def test_what_says_it_is_of_tomorrow_took_as_long_as_it_was_here_and_died_today(plant: Plant) -> None:
    plant.messages(3, enqueued_at=plant.ledger.dialect.stored(NOW + 3000 * MINUTE), dead_lettered_at=None)
    plant.send()
    plant.change("update messages set state = 'presumed'")
    plant.change("update redelivery_attempts set outcome = 'presumed', outcome_at = :at", at=NOW + MINUTE)
    ((p50,),) = plant.rows("select p50_seconds from route_summary")
    assert round(float(p50)) == 60
    assert [row[0] for row in plant.rows("select day from cause_trend")] == [f"{NOW:%Y-%m-%d}"]
    with plant.ledger.read() as connection:
        times = route_queries.times_to_outcome(connection, plant.ledger, "orders", timedelta(seconds=59))
    assert times is not None
    assert (round(times.within[50]), times.within_slo) == (60, 0)


def test_what_says_it_is_of_tomorrow_is_not_young_for_ever(plant: Plant) -> None:
    plant.messages(1, enqueued_at=plant.ledger.dialect.stored(NOW + 3000 * MINUTE))
    with plant.ledger.read() as connection:
        found = {row["name"]: row["n"] for row in route_queries.ages(connection, "orders", NOW + 120 * MINUTE)}
    assert found["1 to 6 h"] == 1


def test_groups_of_equal_size_come_in_one_order(plant: Plant) -> None:
    for number, at in enumerate((NOW, None, NOW - MINUTE), start=1):
        escalate(plant, number, group=number, at=at)
    with plant.ledger.read() as connection:
        assert [row["group_id"] for row in inspecting.review_groups(connection, "orders")] == [2, 3, 1]


def test_decisions_without_a_time_come_last(plant: Plant) -> None:
    for number, at in enumerate((None, NOW, NOW - MINUTE), start=1):
        escalate(plant, number, group=7, at=NOW, status="applied", decision="discard", by=f"p{number}", decided_at=at)
    escalate(plant, 9, group=7, at=NOW)
    with plant.ledger.read() as connection:
        rows = result_queries.results(connection, {"orders"}, lambda _, text: text, "group_id = 7", {})
        assert [row["decided_by"] for row in rows] == ["p2", "p3", "p1"]
        query = (ROOT / "sql/review/last_decisions_of_group.sql").read_text()
        assert [row.decided_by for row in connection.execute(sa.text(query))] == ["p2", "p3", "p1"]


def test_what_was_decided_on_another_route_is_not_what_this_one_decided(plant: Plant) -> None:
    escalate(plant, 1, group=7, at=NOW, route="payments", status="applied", decision="discard", by="zoe")
    escalate(plant, 2, group=7, at=NOW)
    query = (ROOT / "sql/review/last_decisions_of_group.sql").read_text()
    with plant.ledger.read() as connection:
        assert connection.execute(sa.text(query)).all() == []


def test_a_day_is_one_of_utc_whatever_zone_a_reviewer_has(plant: Plant) -> None:
    late = NOW.replace(hour=22, minute=30)
    plant.messages(1, group_id=plant.group(), dead_lettered_at=plant.ledger.dialect.stored(late))
    query = (ROOT / "sql/review/group_by_day.sql").read_text()
    with plant.ledger.read() as connection:
        if plant.ledger.dialect.name == "postgresql":
            connection.execute(sa.text("set time zone 'Europe/Berlin'"))
        assert [row.day for row in connection.execute(sa.text(query))] == [f"{NOW:%Y-%m-%d}"]


def escalate(plant: Plant, number: int, *, group: int, at: object, **said: object) -> None:
    values = {"route": "orders", "status": "open", "decision": None, "by": None, "decided_at": None} | said
    with plant.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into escalated_messages (message_id, route, group_id, reason, size_bytes, source, attempts,"
                " first_enqueued_at, escalated_at, status, decision, decided_by, decided_at) values (:id, :route,"
                " :group, 'x', 1, 'orders-dlq', 1, :at, :now, :status, :decision, :by, :decided_at)"
            ),
            {"id": number, "group": group, "at": at, "now": NOW, **values},
        )
