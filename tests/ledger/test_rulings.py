"""Rulings: what people say about groups, carried out by runs, remembered and learned from."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DatabaseError

from redrive.errors import LeaseLost
from redrive.ledger.aliases import as_they_are
from redrive.ledger.drain import groups
from redrive.ledger.drain.groups import Group
from redrive.ledger.engine import Ledger
from redrive.ledger.review import rulings
from tests import blank
from tests.ledger.planting import NOW, Plant, unchanged
from tests.ledger.test_escalations import person, rows
from tests.workshop import Workshop

NAMES = ["ana", "ben", "cleo", "dora", "emil"]


def made(plant: Plant, *templates: str, cause: str = "application_bug") -> list[int]:
    """Groups of these templates, made known in one load."""
    some = [Group(f"f {one}", cause, one, None) for one in templates]
    found = groups.ensure_groups(plant.ledger, plant.lease, some, plant.now)
    return [found[f"f {one}"] for one in templates]


def rule(plant: Plant, ruling: str, group: int, other: int | None = None, words: str | None = None) -> int:
    return rulings.make(plant.ledger, ruling, group, other=other, words=words, by="ana", note="same fix")


def apply(plant: Plant) -> dict[str, int]:
    return rulings.apply(plant.ledger, plant.lease, plant.now)


def refusals(plant: Plant) -> list[Any]:
    return [row[0] for row in plant.rows("select refusal from group_rulings order by ruling_id")]


def test_what_people_merged_comes_under_the_older_name_and_the_trail_says_who(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    assert apply(plant) == {"applied": 1, "refused": 0, "asked_elsewhere": 0}
    assert made(plant, "gnome lost its hat") == [shelf]
    assert apply(plant)["applied"] == 0
    assert plant.rows(
        "select actor, action, reason from audit_events where action in ('rule_merge', 'merge_groups')"
        " order by event_id"
    ) == [
        ("ana", "rule_merge", "same fix"),
        ("redrive", "merge_groups", "ruling 1 by ana: same fix"),
    ]


def test_the_older_group_keeps_its_name_whichever_is_named_first(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", shelf, gnome)
    apply(plant)
    assert made(plant, "gnome lost its hat", "shelf fell from the wall") == [shelf, shelf]


def test_what_has_an_id_keeps_it(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    ids = plant.messages(2, group_id=gnome)
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    assert plant.rows("select message_id, group_id from messages order by message_id") == [(i, gnome) for i in ids]


def test_groups_of_two_causes_are_not_merged(plant: Plant) -> None:
    (shelf,) = made(plant, "shelf fell from the wall")
    (gnome,) = made(plant, "gnome lost its hat", cause="throttled")
    rule(plant, "merge", gnome, shelf)
    assert apply(plant)["refused"] == 1
    assert refusals(plant)[0].startswith(f"A group has one cause: group {gnome} is throttled")
    assert made(plant, "gnome lost its hat", cause="throttled") == [gnome]


def test_a_group_about_which_a_decision_stands_is_not_merged(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    plant.stand(shelf)
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    assert refusals(plant) == [f"A standing decision about group {shelf} is about its words: revoke it first."]


def test_nor_is_one_that_is_one_with_it(plant: Plant) -> None:
    """Said of an older name, which a colleague remembers, it would bring other questions under the decision."""
    shelf, gnome, heron = made(plant, "shelf fell from the wall", "gnome lost its hat", "heron ate the goldfish")
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    plant.stand(shelf)
    rule(plant, "merge", heron, gnome)
    apply(plant)
    assert refusals(plant) == [None, f"A standing decision about group {shelf} is about its words: revoke it first."]


def merged_by_itself(plant: Plant) -> list[int]:
    found = made(plant, *[f"cannot open session beside gnome {name}" for name in NAMES[:4]])
    made(plant, f"cannot open session beside gnome {NAMES[4]}")
    assert plant.rows("select distinct merged_into from group_aliases") == [(found[0],)]
    return found


def test_what_people_told_apart_is_never_merged_again(plant: Plant) -> None:
    first, second, *_ = merged_by_itself(plant)
    rule(plant, "split", second, first)
    apply(plant)
    assert made(plant, "cannot open session beside gnome ben") == [second]
    made(plant, "cannot open session beside gnome flora")
    assert made(plant, "cannot open session beside gnome ben") == [second]
    assert made(plant, "cannot open session beside gnome cleo") == [first]


def test_a_merge_that_would_bring_together_what_is_two_is_refused(plant: Plant) -> None:
    shelf, gnome, boat = made(plant, "shelf fell from the wall", "gnome lost its hat", "boat sank in the bay")
    rule(plant, "split", shelf, gnome)
    rule(plant, "merge", boat, gnome)
    rule(plant, "merge", boat, shelf)
    assert apply(plant) == {"applied": 2, "refused": 1, "asked_elsewhere": 0}
    assert (
        refusals(plant)[2] == f"Somebody said that groups {gnome} and {shelf} are two failures: take that back first."
    )


def test_of_what_was_said_about_two_groups_the_newest_counts(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "split", shelf, gnome)
    rule(plant, "merge", shelf, gnome)
    apply(plant)
    assert made(plant, "gnome lost its hat") == [shelf]
    rule(plant, "split", shelf, gnome)
    apply(plant)
    assert made(plant, "gnome lost its hat") == [gnome]


@pytest.mark.parametrize("late", ["merge", "split"])
def test_what_was_said_before_but_is_there_only_later_does_not_count_either(plant: Plant, late: str) -> None:
    """Somebody had it open, or was about to take it back, when what was said after it was carried out."""
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    for number, ruling in ((7, "merge" if late == "split" else "split"), (5, late)):
        plant.change(
            "insert into group_rulings (ruling_id, ruling, group_id, other_group_id, decided_by, note)"
            " values (:number, :ruling, :one, :other, 'ana', 'why')",
            number=number,
            ruling=ruling,
            one=gnome,
            other=shelf,
        )
        assert apply(plant)["applied"] == 1
    assert made(plant, "gnome lost its hat") == [shelf if late == "split" else gnome]
    assert apply(plant) == {"applied": 0, "refused": 0, "asked_elsewhere": 0}


def test_a_merge_that_is_taken_back_is_undone_with_what_it_had_brought_along(plant: Plant) -> None:
    shelf, *_ = made(plant, "shelf fell from the wall")
    first, second, *_ = merged_by_itself(plant)
    ruling = rule(plant, "merge", first, shelf)
    apply(plant)
    assert made(plant, "cannot open session beside gnome ben") == [shelf]
    assert rulings.revoke(plant.ledger, ruling, by="ben")
    assert not rulings.revoke(plant.ledger, ruling, by="ben")
    apply(plant)
    assert made(plant, "cannot open session beside gnome ben", "cannot open session beside gnome ana") == [first, first]
    assert second not in made(plant, *[f"cannot open session beside gnome {name}" for name in NAMES])
    told = plant.rows(
        "select actor, action, reason from audit_events where action in ('revoke_ruling', 'split_groups')"
    )
    assert told == [("ben", "revoke_ruling", "same fix"), ("redrive", "split_groups", "ruling 1 was taken back by ben")]


def aliases(plant: Plant) -> list[Any]:
    return plant.rows("select group_id, merged_into, ruling_id from group_aliases order by group_id")


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
def test_what_two_people_said_holds_until_both_take_it_back(plant: Plant, at_once: bool) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    first = rule(plant, "merge", gnome, shelf)
    if not at_once:
        apply(plant)
    second = rule(plant, "merge", shelf, gnome)
    apply(plant)
    assert aliases(plant) == [(gnome, shelf, first)]
    rulings.revoke(plant.ledger, first, by="ana")
    apply(plant)
    assert aliases(plant) == [(gnome, shelf, second)]
    assert plant.value("select count(*) from audit_events where action = 'split_groups'") == 0, "nothing changed"
    rulings.revoke(plant.ledger, second, by="ben")
    apply(plant)
    assert aliases(plant) == []


def test_a_merge_holds_again_once_the_split_after_it_is_taken_back(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    merge = rule(plant, "merge", gnome, shelf)
    apply(plant)
    split = rule(plant, "split", gnome, shelf)
    apply(plant)
    assert aliases(plant) == []
    rulings.revoke(plant.ledger, split, by="ben")
    apply(plant)
    assert aliases(plant) == [(gnome, shelf, merge)]
    assert made(plant, "gnome lost its hat") == [shelf]
    with unchanged(plant):
        assert apply(plant) == {"applied": 0, "refused": 0, "asked_elsewhere": 0}


def test_a_merge_that_can_not_hold_again_says_why(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    split = rule(plant, "split", gnome, shelf)
    apply(plant)
    plant.stand(gnome)
    rulings.revoke(plant.ledger, split, by="ben")
    assert apply(plant)["refused"] == 1
    assert refusals(plant) == [f"A standing decision about group {gnome} is about its words: revoke it first.", None]
    with plant.ledger.read() as connection:
        assert [one["status"] for one in rulings.listed(connection)] == ["revoked", "refused"]
    with unchanged(plant):
        apply(plant)
    assert aliases(plant) == []


@pytest.mark.parametrize("word", ["take back", "split"])
def test_what_was_merged_with_one_of_two_goes_with_that_one_when_they_are_parted(plant: Plant, word: str) -> None:
    shelf, gnome, boat = made(plant, "shelf fell from the wall", "gnome lost its hat", "boat sank in the bay")
    first = rule(plant, "merge", gnome, shelf)
    second = rule(plant, "merge", boat, gnome)
    apply(plant)
    assert aliases(plant) == [(gnome, shelf, first), (boat, shelf, second)]
    if word == "split":
        rule(plant, "split", gnome, shelf)
    else:
        rulings.revoke(plant.ledger, first, by="ben")
    apply(plant)
    assert aliases(plant) == [(boat, gnome, second)], "nobody ever said that shelf and boat are one"
    assert made(plant, "shelf fell from the wall", "boat sank in the bay") == [shelf, gnome]


def test_words_split_off_a_group_of_their_own(plant: Plant) -> None:
    (shelf,) = made(plant, "shelf fell from the wall")
    rule(plant, "split", shelf, words="in  Hall B")
    apply(plant)
    ((split, template),) = plant.rows("select group_id, template from failure_groups where group_id <> :id", id=shelf)
    assert template == "shelf fell from the wall [in Hall B]"
    with plant.ledger.read() as connection:
        known = groups.known_groups(connection)
    assert [(one.words, one.of) for one in known if one.words] == [("in  Hall B", "f shelf fell from the wall")]
    assert [one.fingerprint for one in known if not one.words] == ["f shelf fell from the wall"]
    assert plant.rows("select other_group_id from group_rulings") == [(split,)]


def test_words_that_masks_blank_split_nothing(plant: Plant) -> None:
    (shelf,) = made(plant, "shelf fell from the wall")
    rule(plant, "split", shelf, words="in hall 4711")
    apply(plant)
    assert refusals(plant) == ["The words hold what differs from message to message: in hall <*>."]


def test_a_word_that_two_merges_agree_on_is_learned(plant: Plant) -> None:
    made(plant, "cannot write to a read only replica", "replica has no disk left", "replica answers in riddles")
    slaves = made(plant, "cannot write to a read only slave", "slave has no disk left")
    rule(plant, "merge", slaves[0], 1)
    apply(plant)
    assert made(plant, "slave answers in riddles") == [6], "one person's word about one pair teaches nothing of others"
    rule(plant, "merge", slaves[1], 2)
    apply(plant)
    assert made(plant, "slave answers in riddles") == [3]
    assert plant.rows(
        "select reason from audit_events where action = 'merge_groups' and selection like '%\"group\": 6%'"
    ) == [("what people merged says that their words are the same",)]


def test_a_word_that_somebody_told_apart_is_not_learned(plant: Plant) -> None:
    made(plant, "cannot write to a read only replica", "replica has no disk left", "replica answers in riddles")
    slaves = made(plant, "cannot write to a read only slave", "slave has no disk left", "slave answers in riddles")
    rule(plant, "merge", slaves[0], 1)
    rule(plant, "merge", slaves[1], 2)
    rule(plant, "split", slaves[2], 3)
    apply(plant)
    assert made(plant, "slave answers in riddles") == [slaves[2]]


def test_a_ruling_does_not_change_and_does_not_go_away(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    ruling = rule(plant, "merge", gnome, shelf)
    for statement in (
        "update group_rulings set ruling = 'split'",
        "update group_rulings set decided_by = 'eve'",
        "delete from group_rulings",
        "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
        " values ('merge', 1, 99, 'a', 'b')",
        "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
        " values ('merge', 1, 2, '', 'b')",
        "insert into group_rulings (ruling, group_id, decided_by, note) values ('split', 1, 'a', 'b')",
        "insert into group_rulings (ruling, group_id, other_group_id, words, decided_by, note)"
        " values ('split', 1, 2, 'w', 'a', 'b')",
    ):
        with pytest.raises(DatabaseError):
            plant.change(statement)
    apply(plant)
    assert rulings.revoke(plant.ledger, ruling, by="ben")
    for again in ("revoked_by = 'eve'", "revoked_by = null, revoked_at = null"):
        with pytest.raises(DatabaseError, match="taken back already"):
            plant.change(f"update group_rulings set {again}")


def test_two_routes_runs_carry_a_ruling_out_once(plant: Plant, ledger_url: str) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    rule(plant, "split", shelf, words="in hall b")
    other = Ledger(ledger_url)
    second = Plant(other, route="payments")
    start, done, wrong = threading.Barrier(2), [], []

    def run(one: Plant) -> None:
        start.wait()
        try:
            done.append(apply(one)["applied"])
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in (plant, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert (wrong, sum(done)) == ([], 2)
    assert plant.rows("select action, count(*) from audit_events where action in ('merge_groups', 'split_groups')"
                      " group by action order by action") == [("merge_groups", 1), ("split_groups", 1)]  # fmt: skip


def test_a_replaced_run_carries_nothing_out(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    zombie = plant.lease
    plant.begin()
    with pytest.raises(LeaseLost):
        rulings.apply(plant.ledger, zombie, plant.now)
    assert plant.rows("select count(*) from group_aliases") == [(0,)]


def test_nobody_gets_past_a_canary_by_way_of_a_third_group(plant: Plant) -> None:
    """Of the second one nothing ever failed on this route; it took the third one in before the first one's gate opened,
    and is taken in by that afterwards."""
    shelf, gnome, heron = made(plant, "shelf fell from the wall", "gnome lost its hat", "heron ate the goldfish")
    plant.gate(heron, "tripped")
    plant.now += timedelta(seconds=10)
    rule(plant, "merge", heron, gnome)
    apply(plant)
    plant.now += timedelta(seconds=10)
    plant.gate(shelf, "open")
    plant.now += timedelta(seconds=10)
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    gate = "select stage, allowed from breakers where group_id = :group_id"
    assert plant.rows(gate, group_id=shelf) == [("canary", 0)]


# --- in a whole Redrive -----------------------------------------------------------------------------------

SHELF = "KeyError: 'shelf_of_the_north_hall'"
GNOME = "ZeroDivisionError: division by zero"


@pytest.fixture
def asked(ledger_url: str, tmp_path: Path) -> Workshop:
    """People are asked about two failures."""
    workshop = Workshop(tmp_path, ledger_url, canary={"first": 1, "observe": "1m"})
    workshop.die("s1", "s2", error=SHELF)
    workshop.die("g1", "g2", error=GNOME)
    workshop.cycle()
    assert len(set(rows(workshop, "group_id"))) == 2
    return workshop


def merge(workshop: Workshop, group: int = 2, other: int = 1) -> None:
    person(
        workshop,
        "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
        f" values ('merge', {group}, {other}, 'ana', 'one fix')",
    )


def test_open_questions_are_asked_under_one_name_and_one_decision_answers_them(asked: Workshop) -> None:
    merge(asked)
    asked.review()
    assert rows(asked, "group_id") == [(1,)] * 4
    assert asked.query("select distinct group_id from messages") == [(1,)]
    person(asked, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where group_id = 1")
    assert asked.review()["released"] == 4
    asked.cycle()
    assert len(asked.bodies("orders")) == 1, "the four have one canary, of one message"
    assert asked.audit() == []


def test_what_was_decided_before_stays_with_the_group_that_it_was_about(asked: Workshop) -> None:
    person(asked, "update escalated_messages set decision = 'redeliver', decided_by = 'ana' where group_id = 2")
    merge(asked)
    asked.review()
    assert sorted(rows(asked, "group_id, status")) == [(1, "open")] * 2 + [(2, "decided")] * 2
    asked.cycle()
    assert len(asked.bodies("orders")) == 1
    assert asked.query("select distinct group_id from redelivery_attempts") == [(2,)]
    assert asked.audit() == []


def test_an_open_gate_is_a_canary_again_where_the_other_one_was_not_open(asked: Workshop) -> None:
    person(asked, "update breakers set stage = 'open' where group_id = 1")
    asked.advance(minutes=1)
    merge(asked)
    asked.review()
    assert asked.query("select group_id, stage, allowed from breakers where group_id = 1") == [(1, "canary", 0)]
    asked.cycle()
    person(asked, "update breakers set stage = 'open' where group_id = 1")
    asked.advance(minutes=1)
    asked.cycle()
    assert asked.query("select stage from breakers where group_id = 1") == [("open",)], "once"


@pytest.mark.parametrize("question", ["asked", "to be asked"])
def test_a_group_of_which_nothing_was_planned_has_no_open_gate(asked: Workshop, question: str) -> None:
    """It expired before its first plan, or was held for people; then it is merged into one that goes well."""
    person(asked, "delete from breakers where group_id = 2")
    person(asked, "update breakers set stage = 'open' where group_id = 1")
    if question == "to be asked":
        person(asked, "update escalated_messages set decision = 'discard', decided_by = 'ana' where group_id = 2")
        person(asked, "update messages set state = 'to_review' where group_id = 2")
    asked.advance(minutes=1)
    merge(asked)
    asked.review()
    assert asked.query("select group_id, stage, allowed from breakers") == [(1, "canary", 0)]


@pytest.mark.parametrize("word", ["taken back", "split"])
def test_a_group_that_has_its_own_name_again_begins_with_a_canary(asked: Workshop, word: str) -> None:
    """Whatever came of it meanwhile counted for the other's gate, which stopped it since."""
    person(asked, "update breakers set stage = 'open' where group_id is not null")
    asked.advance(minutes=1)
    merge(asked)
    asked.review()
    asked.advance(days=30)
    person(
        asked,
        "update group_rulings set revoked_by = 'ben'"
        if word == "taken back"
        else "insert into group_rulings (ruling, group_id, other_group_id, decided_by, note)"
        " values ('split', 2, 1, 'ben', 'two')",
    )
    asked.review()
    gates = "select group_id, stage, allowed from breakers where group_id is not null order by group_id"
    assert asked.query(gates)[1] == (2, "canary", 0)
    person(asked, "update breakers set stage = 'open' where group_id = 2")
    asked.advance(minutes=1)
    asked.review()
    assert asked.query(gates)[1][1] == "open", "once"


def test_two_open_gates_stay_open(asked: Workshop) -> None:
    person(asked, "update breakers set stage = 'open' where group_id is not null")
    asked.advance(minutes=1)
    merge(asked)
    asked.review()
    assert asked.query("select distinct stage from breakers where group_id is not null") == [("open",)]


def test_what_comes_after_a_split_by_words_is_a_group_of_its_own(asked: Workshop) -> None:
    person(
        asked,
        "insert into group_rulings (ruling, group_id, words, decided_by, note)"
        " values ('split', 2, 'division by', 'ana', 'two')",
    )
    asked.die("g3", error=GNOME)
    asked.die("s3", error=SHELF)
    asked.cycle()
    assert rows(asked, "payload, group_id")[-2:] == [("g3", 3), ("s3", 1)]
    person(asked, "update group_rulings set revoked_by = 'ana'")
    asked.die("g4", error=GNOME)
    asked.cycle()
    assert rows(asked, "payload, group_id")[-1:] == [("g4", 2)]
    assert asked.audit() == []


@pytest.mark.server
def test_a_merge_that_is_carried_out_keeps_no_route_from_another(postgres_database: str) -> None:
    """On PostgreSQL: SQLite has one writer at a time anyway."""
    ledger = Ledger(postgres_database)
    blank.upgrade(ledger, NOW)
    plant = Plant(ledger)
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    second = Plant(Ledger(postgres_database), route="payments")
    for one in (plant, second):
        one.change(
            "insert into breakers (route, group_id, stage, stage_at, began_at) select :route, group_id,"
            " case when group_id = :older then 'open' else 'canary' end, '2020-01-01', '2020-01-01'"
            " from failure_groups",
            route=one.lease.route,
            older=shelf,
        )
    with plant.ledger.under(plant.lease, plant.now) as tx:
        as_they_are(tx)  # this route is about to follow, and has not got further yet
        done: list[Any] = []
        other = threading.Thread(target=lambda: done.append(apply(second)), daemon=True)
        other.start()
        other.join(60)
        assert done, "it waits for another route"
    stages = "select stage, allowed from breakers where route = 'payments' and group_id = :older"
    assert second.rows(stages, older=shelf) == [("canary", 0)]
    second.ledger.close()
    plant.ledger.close()


def test_a_route_that_has_followed_writes_nothing_more(plant: Plant) -> None:
    shelf, gnome = made(plant, "shelf fell from the wall", "gnome lost its hat")
    rule(plant, "merge", gnome, shelf)
    apply(plant)
    writes: list[str] = []
    event.listen(
        plant.ledger.engine, "before_cursor_execute", lambda c, cursor, statement, *_: writes.append(statement)
    )
    apply(plant)
    assert not [one for one in writes if one.lstrip().startswith(("update", "insert", "delete"))]
