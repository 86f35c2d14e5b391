"""Standing decisions: what people decided about a group also holds for what comes later, until it ends."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DatabaseError

from redrive.ledger.engine import Ledger
from redrive.ledger.review import issues, standing
from tests import blank
from tests.ledger.planting import NOW, Plant
from tests.ledger.test_escalations import person, rows, typed
from tests.ledger.test_restore import Lost
from tests.stages.test_restored_ledger import adopt
from tests.workshop import KEY_ERROR, THROTTLED, Workshop

OTHER = 'Traceback (most recent call last):\n  File "shop.py", line 9, in pay\nZeroDivisionError: division by zero'


def escalate_one(workshop: Workshop) -> None:
    workshop.die("first", error=KEY_ERROR)
    workshop.cycle()
    workshop.advance(minutes=1)


@pytest.fixture
def known(workshop_after: Callable[..., Workshop]) -> Workshop:
    """A group of which one message was escalated before."""
    return workshop_after(escalate_one)


def stand(
    workshop: Workshop, decision: str = "discard", *, lasts: timedelta = timedelta(days=7), route: str = ""
) -> None:
    """What ana types, with the workshop's clock in place of hers."""
    at, until = workshop.now(), workshop.now() + lasts
    person(
        workshop,
        "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at, route)"
        f" select min(group_id), '{decision}', 'ana', 'known bug', '{at:%Y-%m-%d %H:%M:%S}',"
        f" '{until:%Y-%m-%d %H:%M:%S}', {repr(route) if route else 'null'} from failure_groups",
    )


def test_what_is_escalated_later_is_decided_in_the_name_of_who_decided(known: Workshop) -> None:
    stand(known)
    known.die("later", "and later", error=KEY_ERROR)
    known.die("another failure", error=OTHER)
    known.cycle()
    assert rows(known, "payload, status, decision, decided_by, note") == [
        ("first", "open", None, None, None),  # it was there when the decision was made: that one is for a plain UPDATE
        ("later", "decided", "discard", "ana", "standing decision 1: known bug"),
        ("and later", "decided", "discard", "ana", "standing decision 1: known bug"),
        ("another failure", "open", None, None, None),
    ]
    assert known.query("select actor, count from audit_events where action = 'apply_standing_discard'") == [
        ("redrive", 2)
    ]
    assert known.query("select actor from audit_events where action = 'decide_discard'") == [("ana",)] * 2
    assert known.review()["discarded"] == 2
    assert known.states() == {"escalated": 2, "discarded": 2}
    assert known.audit() == []


def test_a_standing_redelivery_sends_each_message_once_and_then_asks(known: Workshop) -> None:
    stand(known, "redeliver")
    known.die("later", error=KEY_ERROR)
    known.cycle()
    assert known.review()["released"] == 1
    known.cycle()
    assert known.bodies("orders") == [b"later"]
    known.consume(lambda _: KEY_ERROR)
    known.cycle()
    assert rows(known, "payload, status")[-1] == ("later", "open"), "a person looks at what came back"
    assert known.review()["released"] == 0


def test_a_canary_that_fails_suspends_it(ledger_url: str, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, ledger_url, canary={"first": 1, "observe": "1m"})
    workshop.die("first", error=KEY_ERROR)
    workshop.cycle()
    workshop.advance(minutes=1)
    stand(workshop, "redeliver")
    workshop.die("a", "b", "c", error=KEY_ERROR)
    workshop.cycle()
    assert workshop.review()["released"] == 3
    workshop.cycle()
    assert len(workshop.bodies("orders")) == 1
    workshop.consume(lambda _: KEY_ERROR)
    workshop.cycle()
    assert dict(workshop.query("select status, count(*) from escalated_messages group by status")) == {
        "open": 2,  # the first one, and the canary that came back
        "reopened": 2,
        "applied": 1,
    }
    workshop.die("d", error=KEY_ERROR)
    workshop.cycle()
    assert rows(workshop, "payload, status")[-1] == ("d", "open")
    assert workshop.review()["released"] == 0
    person(
        workshop,
        "update escalated_messages set decision = 'redeliver', decided_by = 'ben' where payload = 'd'",
    )
    assert workshop.review()["released"] == 1
    assert workshop.query("select stage from breakers where group_id is not null") == [("canary",)]
    workshop.die("not ben's", error=KEY_ERROR)
    workshop.cycle()
    assert rows(workshop, "payload, status")[-1] == ("not ben's", "open"), "that he tries one says nothing of others"
    workshop.advance(minutes=1)
    stand(workshop, "redeliver")  # it is fixed now, she says, and makes it anew
    workshop.die("e", error=KEY_ERROR)
    workshop.cycle()
    assert rows(workshop, "payload, status")[-1] == ("e", "decided")
    workshop.ledger.close()


class TestAGroupThatPassesByItself:
    """Its gate trips, and tries again by itself."""

    @staticmethod
    def throttled(tmp_path: Path, ledger_url: str, tries: int) -> Workshop:
        workshop = Workshop(
            tmp_path,
            ledger_url,
            canary={"first": 4, "observe": "1m"},
            delay_attempts=tries,
            requeue_attempts=0,
            backoff={"first": "1s", "max": "1s"},
        )
        workshop.die("first", error=THROTTLED)
        workshop.cycle()
        return workshop

    @staticmethod
    def stage(workshop: Workshop) -> object:
        return workshop.query("select stage from breakers where group_id is not null")[0][0]

    @pytest.mark.parametrize("released", [2, 6], ids=["all of it in the canary", "more than the canary"])
    def test_a_trip_with_what_it_released_suspends_it_for_good(
        self, ledger_url: str, tmp_path: Path, released: int
    ) -> None:
        workshop = self.throttled(tmp_path, ledger_url, tries=0)
        workshop.advance(minutes=1)
        stand(workshop, "redeliver")
        workshop.die(*(f"a{n}" for n in range(released)), error=THROTTLED)
        workshop.cycle()
        assert workshop.review()["released"] == released
        workshop.cycle()
        assert workshop.consume(lambda _: THROTTLED) == min(released, 4)
        workshop.cycle()
        assert self.stage(workshop) == "tripped"
        workshop.die("b", error=THROTTLED)
        workshop.cycle()
        assert rows(workshop, "payload, status")[-1] == ("b", "open")
        assert workshop.review()["released"] == 0
        assert self.stage(workshop) == "tripped", "the cool-down goes on"
        workshop.advance(hours=2)
        workshop.cycle()
        assert self.stage(workshop) == "canary"
        workshop.die("c", error=THROTTLED)
        workshop.cycle()
        assert rows(workshop, "payload, status")[-1] == ("c", "open"), "it stays so when the gate is tried again"
        stand(workshop, "redeliver")
        workshop.die("d", error=THROTTLED)
        workshop.cycle()
        assert rows(workshop, "payload, status")[-1] == ("d", "decided")
        assert workshop.audit() == []
        workshop.ledger.close()

    def test_a_trip_without_anything_that_people_released_leaves_it(self, ledger_url: str, tmp_path: Path) -> None:
        workshop = self.throttled(tmp_path, ledger_url, tries=1)
        stand(workshop, "redeliver")
        workshop.advance(minutes=1)
        workshop.cycle()
        assert workshop.consume(lambda _: THROTTLED) == 1
        workshop.cycle()
        assert self.stage(workshop) == "tripped"
        assert rows(workshop, "payload, status") == [("first", "decided")]
        workshop.ledger.close()


@pytest.mark.parametrize("ending", ["expired", "revoked", "for another route"])
def test_one_that_does_not_hold_decides_nothing(known: Workshop, ending: str) -> None:
    stand(known, lasts=timedelta(hours=1), route="billing" if ending == "for another route" else "orders")
    if ending == "expired":
        known.advance(hours=1)
    if ending == "revoked":
        person(known, "update standing_decisions set revoked_by = 'ben'")
        assert known.query("select revoked_at is not null from standing_decisions") == [(True,)]
    known.die("later", error=KEY_ERROR)
    known.cycle()
    assert rows(known, "status") == [("open",)] * 2


def test_the_routes_own_and_the_newest_win(known: Workshop) -> None:
    stand(known, "discard", route="orders")
    stand(known, "redeliver", route="orders")
    stand(known, "discard")
    known.die("later", error=KEY_ERROR)
    known.cycle()
    assert rows(known, "decision")[-1] == ("redeliver",)


def test_where_two_have_to_agree_it_holds_only_with_the_second_person(ledger_url: str, tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, ledger_url, approvals=2)
    workshop.die("first", error=KEY_ERROR)
    workshop.cycle()
    workshop.advance(minutes=1)
    stand(workshop)
    workshop.die("later", error=KEY_ERROR)
    workshop.cycle()
    assert rows(workshop, "status") == [("open",)] * 2
    with pytest.raises(DatabaseError, match="second person"):
        person(workshop, "update standing_decisions set approved_by = 'ANA'")
    person(workshop, "update standing_decisions set approved_by = 'ben'")
    workshop.cycle()
    assert rows(workshop, "status, decided_by, approved_by")[-1] == ("applied", "ana", "ben")
    assert workshop.states() == {"escalated": 1, "discarded": 1}
    workshop.ledger.close()


@pytest.mark.parametrize("decision", ["redeliver", "discard"])
def test_what_somebody_took_back_is_not_decided_again_by_what_stands(known: Workshop, decision: str) -> None:
    stand(known, decision)
    known.die("later", "and later", error=KEY_ERROR)
    known.cycle()
    person(
        known,
        "update escalated_messages set decision = null, decided_by = 'ben', note = 'not this one'"
        " where payload = 'later'",
    )
    known.review()
    known.cycle()
    assert rows(known, "payload, status, decision, note")[1:] == [
        ("later", "open", None, "not this one"),
        ("and later", "applied", decision, "standing decision 1: known bug"),
    ]
    assert b"later" not in known.bodies("orders")
    assert known.audit() == []


class TestWhatMayHaveBeenSentAlready:
    """It is asked whether to send it again, and a standing decision answers what was wrong with the first send."""

    @pytest.mark.parametrize("decision", ["redeliver", "discard"])
    def test_because_a_delivery_lost_sight_of_it(self, workshop: Workshop, decision: str) -> None:
        self.died_of_what_stands(workshop, decision)
        workshop.broker = Lost(workshop)  # type: ignore[assignment]
        workshop.cycle()
        workshop.broker = workshop.broker._broker  # type: ignore[attr-defined]
        self.is_for_people(workshop, sent=[b"a"])

    def test_because_the_ledger_was_restored_from_a_backup(self, workshop: Workshop) -> None:
        self.died_of_what_stands(workshop)
        workshop.planned()
        workshop.advance(hours=1)
        assert adopt(workshop, restored=True) == {"doubted": 1, "standing_decisions_ended": 1}
        self.is_for_people(workshop, sent=[])

    @staticmethod
    def died_of_what_stands(workshop: Workshop, decision: str = "redeliver") -> None:
        """One died, a person decided about what fails so, and another one died."""
        workshop.die("first")
        workshop.cycle()
        workshop.consume()
        workshop.advance(minutes=1)
        stand(workshop, decision)
        workshop.die("a")

    @staticmethod
    def is_for_people(workshop: Workshop, sent: list[bytes]) -> None:
        for _ in range(4):
            workshop.advance(hours=1)
            workshop.cycle()
            workshop.review()
        assert rows(workshop, "payload, status, decision") == [("a", "open", None)]
        assert workshop.bodies("orders") == sent
        person(workshop, "update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
        assert workshop.review()["released"] == 1, "a person may say so"


def test_nonsense_is_refused_at_once(plant: Plant) -> None:
    group = plant.group()

    def insert(**changed: object) -> str:
        values = {"group_id": group, "decision": "discard", "decided_by": "a", "note": "b", "until_at": "2099-01-01"}
        values |= changed
        given = ", ".join(repr(value) for value in values.values())
        return f"insert into standing_decisions ({', '.join(values)}) values ({given})"

    plant.change(insert())
    before = plant.rows("select * from standing_decisions")
    for nonsense in (
        insert(decision="edit"),
        insert(decided_by=" "),
        insert(note=""),
        insert(until_at="2001-01-01"),
        insert(until_at="soon"),
        insert(group_id=99),
        insert(approved_by="c"),
        insert(revoked_by="c"),
        f"insert into standing_decisions (group_id, decision, decided_by, note) values ({group}, 'discard', 'a', 'b')",
        "update standing_decisions set until_at = '2099-02-01'",
        "update standing_decisions set decision = 'redeliver'",
        "update standing_decisions set decided_by = 'ben'",
        "update standing_decisions set revoked_at = '2099-01-01'",
        "delete from standing_decisions",
    ):
        with pytest.raises(DatabaseError):
            typed(plant.ledger, nonsense)
        assert plant.rows("select * from standing_decisions") == before, nonsense


def test_one_that_was_revoked_stays_so(plant: Plant) -> None:
    plant.change(
        "insert into standing_decisions (group_id, decision, decided_by, note, until_at)"
        " values (:group, 'discard', 'ana', 'known', '2099-01-01')",
        group=plant.group(),
    )
    typed(plant.ledger, "update standing_decisions set revoked_by = 'ben'")
    with pytest.raises(DatabaseError, match="revoked already"):
        typed(plant.ledger, "update standing_decisions set revoked_at = null, revoked_by = null")
    assert plant.rows("select actor, action from audit_events order by event_id") == [
        ("ana", "make_standing_discard"),
        ("ben", "revoke_standing_discard"),
    ]


@pytest.mark.server
@pytest.mark.parametrize("what", ["standing_decisions", "issue_comments"])
def test_two_clicks_at_the_very_same_moment_say_it_once(postgres_database: str, what: str) -> None:
    """On PostgreSQL: SQLite has one writer at a time anyway. The first one is not committed when the second begins."""
    first, second = Ledger(postgres_database), Ledger(postgres_database)
    blank.upgrade(first, NOW)
    group = Plant(first).group()
    written, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        written.set()
        assert go_on.wait(60)

    def say(ledger: Ledger) -> None:
        if what == "issue_comments":
            issues.comment(ledger, [("orders", group)], by="ana", now=NOW, text="asked billing")
            return
        until = NOW + timedelta(days=7)
        standing.make(
            ledger, route="orders", group_id=group, decision="discard", until=until, note="test data", by="ana", now=NOW
        )

    event.listen(first.engine, "commit", hold)
    threads = [threading.Thread(target=say, args=(ledger,), daemon=True) for ledger in (first, second)]
    threads[0].start()
    assert written.wait(60)
    threads[1].start()
    threads[1].join(0.5)
    go_on.set()
    for one in threads:
        one.join(60)
    event.remove(first.engine, "commit", hold)
    assert Plant(second).rows(f"select count(*) from {what}") == [(1,)]
    for ledger in (first, second):
        ledger.close()
