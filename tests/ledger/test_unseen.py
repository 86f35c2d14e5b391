"""Nobody decides about what they were not shown: what changes between a look and the decision is left alone."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from redrive.brokers.memory import MemoryBroker
from redrive.errors import QueueMissing
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.review import decisions, rulings, standing
from redrive.ledger.review.decisions import Choice, Open
from redrive.ledger.selecting import Selection
from redrive.ledger.tables import escalated_messages
from redrive.stages import pipeline
from redrive_ui import bulk_decisions
from redrive_ui.bulk_decisions import Preview
from redrive_ui.filters import Filter
from tests.ledger.test_escalations import person, rows
from tests.workshop import KEY_ERROR, Workshop

OTHER = "ZeroDivisionError: division by zero"
UNDECIDED = Filter.read({"route": "orders", "status": "undecided"})
DECIDED = Filter.read({"route": "orders", "status": "decided"})


def escalate_some(workshop: Workshop) -> None:
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.die("other", error=OTHER)
    workshop.cycle()


@pytest.fixture
def asked(workshop_after: Callable[..., Workshop]) -> Workshop:
    """People are asked about three messages of a failure, and one of another, which came last."""
    return workshop_after(escalate_some)


def look(workshop: Workshop, action: str, chosen: Filter, by: str) -> Preview:
    with workshop.ledger.read() as connection:
        return bulk_decisions.preview(connection, action, chosen, {"orders"}, by, lambda _, text: text)


def confirm(workshop: Workshop, shown: Preview, chosen: Filter, by: str, note: str = "why") -> int:
    return bulk_decisions.decide(
        workshop.ledger,
        shown.action,
        chosen,
        {"orders"},
        by=by,
        note=note,
        up_to=shown.up_to,
        seen=shown.seen,
        at=workshop.now(),
    ).count


def say(workshop: Workshop, choice: Choice, found: Open, decision: str = "discard") -> int:
    return decisions.decide(
        workshop.ledger,
        choice,
        up_to=found.up_to,
        seen=found.seen,
        decision=decision,
        by="ana",
        note="why",
        correction=None,
    )


def decided(workshop: Workshop) -> list[tuple[Any, ...]]:
    return rows(workshop, "payload, decision, decided_by, approved_by")


def test_an_approval_is_of_what_was_shown(asked: Workshop) -> None:
    person(asked, "update escalated_messages set decision = 'edit', corrected_body = '10', decided_by = 'ana'"
                  " where payload in ('a', 'b')")  # fmt: skip
    shown = look(asked, "approve", DECIDED, "ben")
    person(asked, "update escalated_messages set decision = 'edit', corrected_body = '1000000', decided_by = 'ana'"
                  " where payload = 'a'")  # fmt: skip
    assert confirm(asked, shown, DECIDED, "ben") == shown.count - 1 == 1
    assert decided(asked)[:2] == [("a", "edit", "ana", None), ("b", "edit", "ana", "ben")]


def test_a_withdrawal_is_of_what_was_shown(asked: Workshop) -> None:
    person(asked, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    shown = look(asked, "withdraw", DECIDED, "ana")
    person(asked, "update escalated_messages set decision = null, decided_by = 'ben' where payload = 'a'")
    person(asked, "update escalated_messages set decision = 'discard', decided_by = 'ben' where payload = 'a'")
    assert confirm(asked, shown, DECIDED, "ana") == 3
    assert [row[:2] for row in decided(asked)] == [("a", "discard"), ("b", None), ("c", None), ("other", None)]


def test_a_question_that_is_asked_again_was_not_shown(asked: Workshop) -> None:
    person(asked, "update escalated_messages set decision = 'redeliver', decided_by = 'ben' where payload = 'a'")
    shown = look(asked, "discard", UNDECIDED, "ana")
    found = decisions.undecided(asked.ledger, Choice(group=1), limit=1)
    person(asked, "update escalated_messages set decision = null, decided_by = 'ben' where payload = 'a'")
    assert confirm(asked, shown, UNDECIDED, "ana") == shown.count == 3
    assert rows(asked, "payload, status")[0] == ("a", "open")
    assert (found.questions, say(asked, Choice(group=1), found)) == (1, 0)


def test_no_more_are_decided_than_the_limit(asked: Workshop) -> None:
    person(asked, "update escalated_messages set decision = 'redeliver', decided_by = 'ben' where payload < 'c'")
    found = decisions.undecided(asked.ledger, Choice(group=1), limit=1)
    person(asked, "update escalated_messages set decision = null, decided_by = 'ben'")
    assert say(asked, Choice(group=1), found) == 0
    found = decisions.undecided(asked.ledger, Choice(group=1), limit=1)
    assert say(asked, Choice(group=1), found) == 1


def test_what_a_merge_brings_into_a_group_was_not_shown(asked: Workshop) -> None:
    choice, chosen = Choice(group=1, route="orders"), Filter.read({"route": "orders", "group": "2"})
    asked.die("late", error=KEY_ERROR)
    asked.cycle()
    found = decisions.undecided(asked.ledger, choice)
    page = look(asked, "discard", Filter.read({"route": "orders", "group": "1"}), "ana")
    rulings.make(asked.ledger, "merge", 2, other=1, by="ben", note="same fix")
    asked.review()
    assert rows(asked, "group_id") == [(1,)] * 5
    assert look(asked, "discard", chosen, "ana").count == 0
    bulk = Filter.read({"route": "orders", "group": "1", "ids": ["1", "4"]})
    assert confirm(asked, page, bulk, "ana") == 1, "the fourth is of this group only since"
    assert say(asked, choice, found) == found.questions - 1 == 3
    assert rows(asked, "payload, status")[3] == ("other", "open")


def test_what_is_decided_in_steps_is_decided_whole(asked: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_decisions, "CHUNK", 1)
    shown = look(asked, "discard", UNDECIDED, "ana")
    person(asked, "update escalated_messages set note = 'mine' where payload = 'b'")
    assert confirm(asked, shown, UNDECIDED, "ana") == 3
    assert [row[1] for row in decided(asked)] == ["discard", None, "discard", "discard"]


def test_nothing_that_a_reader_could_not_see_counts_as_seen(postgres_workshop: Workshop) -> None:
    """On PostgreSQL a change may begin before somebody looks, and end afterwards."""
    asked = postgres_workshop
    person(asked, "update escalated_messages set decision = 'edit', corrected_body = '10', decided_by = 'ana'")
    other = Ledger(asked.settings.database)
    with other.write() as connection:
        # within a savepoint, which has a number of its own
        with connection.begin_nested():
            connection.execute(sql("update escalated_messages set corrected_body = '99' where payload = 'a'"))
        shown = look(asked, "approve", DECIDED, "ben")
    assert confirm(asked, shown, DECIDED, "ben") == shown.count - 1
    assert decided(asked)[0] == ("a", "edit", "ana", None)
    other.close()


def test_a_question_that_was_asked_before_but_is_there_only_now_was_not_shown(postgres_workshop: Workshop) -> None:
    """On PostgreSQL numbers are given before others see the row: another route's run may commit a smaller one later."""
    asked = postgres_workshop
    columns = ", ".join(column.name for column in escalated_messages.columns if column.name != "escalation_id")
    again = (
        f"insert into escalated_messages ({columns}) select {columns} from escalated_messages where payload = '{{}}'"
    )
    other = Ledger(asked.settings.database)
    with other.write() as connection:
        connection.exec_driver_sql(again.format("a"))
        person(asked, again.format("other"))
        shown = look(asked, "discard", UNDECIDED, "ana")
        found = decisions.undecided(asked.ledger, Choice(group=1, route="orders"))
    assert shown.count == 5
    assert say(asked, Choice(group=1, route="orders"), found) == 3
    assert confirm(asked, shown, UNDECIDED, "ana") == 2
    assert decided(asked).count(("a", None, None, None)) == 1
    other.close()


def test_a_message_that_a_restore_had_meanwhile_was_not_shown(asked: Workshop) -> None:
    shown: list[Preview] = []

    class Gone(MemoryBroker):
        def publish(self, queue: str, messages: Any) -> Any:
            shown.append(look(asked, "redeliver", UNDECIDED, "ana"))
            raise QueueMissing(queue)

    run = asked.begin(even_if_paused=True, selection=Selection(groups=(1,)))
    assert pipeline.restore(asked.settings, run, clock=asked.now, broker=Gone(asked.world))["not_restored"] == 3
    pipeline.finish(asked.settings, run, "failed", asked.now)
    assert asked.states() == {"escalated": 4}
    assert confirm(asked, shown[0], UNDECIDED, "ana") == shown[0].count == 1


def test_what_another_server_counted_is_no_change(postgres_workshop: Workshop) -> None:
    """A ledger that was copied keeps the numbers of transactions of where it comes from."""
    asked = postgres_workshop
    person(asked, "alter table escalated_messages disable trigger user")
    person(asked, "update escalated_messages set changed = 1 << 40")
    person(asked, "alter table escalated_messages enable trigger user")
    shown = look(asked, "discard", UNDECIDED, "ana")
    person(asked, "update escalated_messages set note = 'mine' where payload = 'b'")
    assert confirm(asked, shown, UNDECIDED, "ana") == shown.count - 1


@pytest.fixture
def postgres_workshop(postgres_database: str, tmp_path: Any) -> Workshop:
    """As ``asked``."""
    workshop = Workshop(tmp_path, postgres_database)
    escalate_some(workshop)
    return workshop


def stand(workshop: Workshop, group: int) -> int:
    return standing.make(
        workshop.ledger,
        route="orders",
        group_id=group,
        decision="discard",
        until=workshop.now() + timedelta(days=9),
        note="tests",
        by="ana",
        now=workshop.now(),
    )


def test_whoever_revokes_a_standing_decision_waits_for_what_it_decides(
    postgres_workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL: SQLite has one writer at a time anyway."""
    asked = postgres_workshop
    made = stand(asked, 1)
    asked.advance(minutes=1)
    asked.die("later", error=KEY_ERROR)
    real, told, threads = standing._kept, list[str](), list[threading.Thread]()

    def revoke(now: Any) -> None:
        other = Ledger(asked.settings.database)
        standing.end(other, made, by="ben", now=now)
        told.append("revoked")
        other.close()

    def reading(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        threads.append(threading.Thread(target=revoke, args=(asked.now(),), daemon=True))
        threads[-1].start()
        threads[-1].join(1)
        told.append("decides")
        return found

    for stage, _ in asked.stages(asked.begin()):
        if stage == "plan":  # which carries out what was decided before
            monkeypatch.setattr(standing, "_kept", reading)
    threads[0].join(30)
    assert told == ["decides", "revoked"]
    assert rows(asked, "payload, decision")[-1] == ("later", "discard")


def test_a_standing_decision_is_not_about_a_group_that_was_merged_away(asked: Workshop) -> None:
    rulings.make(asked.ledger, "merge", 2, other=1, by="ben", note="same fix")
    asked.review()
    with pytest.raises(Exception, match="merged into"):
        stand(asked, 2)
    assert asked.query("select count(*) from standing_decisions") == [(0,)]
    stand(asked, 1)
    asked.advance(minutes=1)
    asked.die("later", error=OTHER)
    asked.cycle()
    assert rows(asked, "payload, decision")[-1] == ("later", "discard")
