"""A failure that is told in several ways keeps its group from run to run, whatever people decided about it."""

from datetime import timedelta

from redrive.classification import grouping
from redrive.classification.cases import Case
from redrive.classification.explain import explain_cases
from redrive.ledger.drain import groups
from redrive.ledger.drain.groups import Group
from redrive.ledger.review import standing
from tests.ledger.planting import Plant
from tests.workshop import Workshop

#: One failure as two clients tell it: neither says all that the other does.
SAID = (
    "WriteConflict error: this operation conflicted with another operation."
    " Please retry your operation or multi-document transaction."
)
CONFLICTS = [
    f"MongoServerError: {SAID}",
    "com.mongodb.MongoCommandException: Command failed with error 112 (WriteConflict): "
    f"'{SAID}' on server db1.internal:27017.",
]
#: Another one, which people are asked about.
TOO_LONG = [
    "com.mysql.cj.jdbc.exceptions.MysqlDataTruncation: Data truncation: Data too long for column 'gift_note' at row 36",
    "(1406, \"Data too long for column 'gift_note' at row 29\")",
]


def told(plant: Plant, *texts: str) -> list[int]:
    """The group of each text, as a run finds it that knows what the ledger does."""
    with plant.ledger.read() as connection:
        known = groups.known_groups(connection)
    found = explain_cases({Case(grouping.mask(text)): 1 for text in texts}, known=known)
    tellings: dict[str, set[str]] = {}
    for one in found.values():
        tellings.setdefault(one.fingerprint, set()).update([one.telling] if one.telling else [])
    some = [
        Group(one.fingerprint, one.cause, one.template, None, frozenset(tellings[one.fingerprint]))
        for one in found.values()
    ]
    ids = groups.ensure_groups(plant.ledger, plant.lease, some, plant.now)
    return [ids[found[Case(grouping.mask(text))].fingerprint] for text in texts]


def made(plant: Plant, *templates: str) -> list[int]:
    """Groups of these templates and of one cause."""
    some = [Group(template, "auth_failure", template, None) for template in templates]
    ids = groups.ensure_groups(plant.ledger, plant.lease, some, plant.now)
    return [ids[template] for template in templates]


def test_a_text_stays_in_its_group_while_a_decision_stands_about_it(plant: Plant) -> None:
    first = told(plant, *CONFLICTS)
    assert len(set(first)) == 1
    plant.stand(first[0])
    for _ in range(2):
        plant.begin()
        assert told(plant, *CONFLICTS) == first
        assert [told(plant, text) for text in CONFLICTS] == [first[:1], first[:1]]


def test_a_standing_decision_holds_for_every_telling(workshop: Workshop) -> None:
    """From the queue on: what one telling was decided about is decided when the other comes."""
    for number, text in enumerate(TOO_LONG):
        workshop.die(f"first {number}", error=text)
    workshop.cycle()
    ((group, asked),) = workshop.rows("select group_id, count(*) from escalated_messages group by group_id")
    assert asked == 2
    workshop.advance(minutes=1)
    now = workshop.now()
    standing.make(
        workshop.ledger, route="orders", group_id=group, decision="discard", until=now + timedelta(days=1),
        note="gifts have no notes", by="ana", now=now,
    )  # fmt: skip
    for run in range(2):
        workshop.advance(minutes=1)
        for number, text in enumerate(TOO_LONG):
            workshop.die(f"run {run}, {number}", error=text)
        workshop.cycle()
    found = workshop.rows("select group_id, decision, count(*) from escalated_messages group by group_id, decision")
    assert sorted(found, key=str) == [(group, "discard", 4), (group, None, 2)]
    assert workshop.audit() == []


def test_a_telling_is_known_by_the_name_of_its_group(plant: Plant) -> None:
    group, _ = told(plant, *CONFLICTS)
    assert plant.rows("select merged_into, parent_id, ruling_id from group_aliases") == [(group, group, None)]
    with plant.ledger.read() as connection:
        known = groups.known_groups(connection)
    assert len(known) == 2
    assert len({one.fingerprint for one in known}) == 1
    assert told(plant, *CONFLICTS) == [group, group]
    assert plant.rows("select count(*) from failure_groups") == [(2,)]
    assert plant.rows("select count(*) from audit_events where action = 'merge_groups'") == [(0,)]


def test_a_telling_that_is_a_group_stays_one(plant: Plant) -> None:
    (own,) = made(plant, "gnome gateway closed")
    name = grouping.fingerprint("auth_failure", "gnome gateway shut")
    one = Group(name, "auth_failure", "gnome gateway shut", None)
    groups.ensure_groups(plant.ledger, plant.lease, [one], plant.now)
    other = Group("other", "auth_failure", "a hat is lost", None, frozenset([one.template]))
    ids = groups.ensure_groups(plant.ledger, plant.lease, [one, other], plant.now)
    assert len({own, *ids.values()}) == 3
    assert plant.rows("select count(*) from group_aliases") == [(0,)]


def test_nothing_is_merged_with_another_telling_of_a_decided_group(plant: Plant) -> None:
    (group,) = made(plant, "sync of shelves stopped")
    assert made(plant, "sync of shelves stopped (disk is full)") == [group]
    plant.stand(group)
    (more,) = made(plant, "sync of shelves stopped (disk is full) (hall is shut)")
    assert more != group
    assert plant.rows("select count(*) from group_aliases") == [(1,)]
    plant.now += timedelta(days=2)
    plant.begin()
    assert made(plant, "sync of shelves stopped (disk is full) (hall is shut)") == [group]


def test_what_a_decided_group_says_tells_others_apart(plant: Plant) -> None:
    (full,) = made(plant, "sync of shelves stopped (disk is full)")
    plant.stand(full)
    assert len({full, *made(plant, "sync of shelves stopped (pool is closed)", "sync of shelves stopped")}) == 3
