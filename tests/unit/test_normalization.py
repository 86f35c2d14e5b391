"""Dress and values are taken off a failure text; the names of what is broken stay."""

from itertools import combinations

import pytest
from failure_families import FAMILIES, texts
from failure_samples import SAMPLES

from redrive.classification import grouping, similarity
from redrive.classification.cases import Case
from redrive.classification.explain import compare, explain, explain_cases
from redrive.classification.templates import KnownGroup


def template(text: str) -> str:
    return grouping.templates([masked := grouping.mask(text)])[masked]


def groups_of(*lines: str) -> list[str]:
    return [line["group"] for line in explain({"text": text} for text in lines)]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(
            "2026-03-01T10:00:07Z ERROR [pool-3] shop.Worker - KeyError: 'sku'", "KeyError: 'sku'", id="log prefix"
        ),
        pytest.param("Mar 11 10:00:07 node-7 app[431]: queue is full", "queue is full", id="syslog"),
        pytest.param(
            "2026-03-01 10:00:07.001 ERROR 7 --- [pool-3-thread-1] shop.orders.Worker     : queue is full",
            "queue is full",
            id="spring boot",
        ),
        pytest.param("10:00:07.001 [pool-3] ERROR shop.Worker - queue is full", "queue is full", id="logback"),
        pytest.param("[2026-03-01T10:00:07+00:00] shop.CRITICAL: queue is full", "queue is full", id="monolog"),
        pytest.param("Handler OrderListener failed for a1b2c3d4: queue is full", "queue is full", id="handler"),
        pytest.param("Task shop.tasks.ship[7f3a] raised unexpected: queue is full", "queue is full", id="celery"),
        pytest.param("delivery_tag=7 queue is full", "queue is full", id="setting in front"),
        pytest.param("queue is full [truncated]", "queue is full\u2026", id="cut short"),
        pytest.param("ValueError('bad hat size')", "ValueError: bad hat size", id="printed exception"),
        pytest.param("seat of guest Ada Blorentz is taken", "seat of guest <*> is taken", id="person"),
        pytest.param("hat of customer Ada Blorentz is lost", "hat of customer <*> is lost", id="person behind a noun"),
        pytest.param("seat answered Bad Gateway twice", "seat answered Bad Gateway twice", id="words of the trade"),
        pytest.param("patient Patient/77 has no name", "patient Patient has no name", id="reference"),
        pytest.param(
            '{"code": "bad_type", "path": ["hats", 7, "size"], "message": "Required"}',
            "code=bad_type path=hats.size | Required",
            id="path in a list",
        ),
        pytest.param("[{'count': 7, 'reason': 'expired', 'queue': 'a'}]", "reason=expired", id="printed map"),
        pytest.param(
            "DeadLetterReason=HatLost; DeadLetterErrorDescription=the hat is gone",
            "dead_letter_reason=HatLost | the hat is gone",
            id="settings of several words",
        ),
        pytest.param("attempt 3/5: printer is out of paper", "printer is out of paper", id="attempt"),
        pytest.param(
            'null value in column "tin" of relation "firms"',
            "null value in column 'tin' of relation 'firms'",
            id="names",
        ),
        pytest.param("no stock of item 'AB-7' for user 'ana'", "no stock of item <*> for user <*>", id="values"),
        pytest.param("paid 12.50 EUR on 3 March 2026", "paid <*>", id="amount"),
        pytest.param("HTTP 404 for url https://api.shop.test/v2/carts/7?x=1", "HTTP 404 for url /carts", id="resource"),
        pytest.param(
            '{"code": "no_stock", "message": "No stock of 7", "requestId": "a81"}',
            "code=no_stock | No stock of <*>",
            id="json",
        ),
        pytest.param('ts=1 level=error err="pool is closed" order=77', "pool is closed", id="logfmt"),
        pytest.param(
            "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>",
            "code=SlowDown | Reduce your rate",
            id="xml",
        ),
        pytest.param(
            "A failed; nested exception is shop.LateException: too late", "LateException: too late", id="cause"
        ),
    ],
)
def test_what_is_left(text: str, left: str) -> None:
    assert template(text) == left


@pytest.mark.parametrize(
    "tellings",
    [
        pytest.param(
            ("shop.PrinterException: printer is out of paper", "printer is out of paper"), id="class in front"
        ),
        pytest.param(("voucher already used", "voucher already used (by ana@acme.test)"), id="optional part"),
        pytest.param(
            ("row refused by gate", "row refused by gate\nDETAIL:  Row 7 has (a, b).", "ROW refused by gate"),
            id="detail and case",
        ),
        pytest.param(("load cart: pool is closed", "handle Paid: load cart: pool is closed"), id="wrapper"),
        pytest.param(
            (
                "could not execute statement [duplicate key in 'ux_hat']; SQL [insert into hats (a) values (?)]",
                "save hat: shop.DupException: duplicate key in 'ux_hat'",
                "retry 2 exhausted: duplicate key in 'ux_hat'",
            ),
            id="who tells what is named",
        ),
        pytest.param(("hat 7 does not fit any head", "hat 8 does not fit any he\u2026"), id="cut short"),
        pytest.param(("3 items missing: A-1, A-2, A-3", "1 items missing: B-7"), id="length of a list"),
    ],
)
def test_one_failure_however_it_is_told(tellings: tuple[str, ...]) -> None:
    assert len(set(groups_of(*tellings))) == 1


@pytest.mark.parametrize(
    "lookalikes",
    [
        pytest.param(("KeyError: 'sku'", "KeyError: 'email'"), id="names"),
        pytest.param(('null value in column "a_id"', 'null value in column "b_id"'), id="columns"),
        pytest.param(
            ("GET https://a.test/carts/7 gave 404 Not Found", "GET https://a.test/users/7 gave 404 Not Found"),
            id="resources",
        ),
        pytest.param(
            ('{"code": "a_b", "path": ["hat", "size"]}', '{"code": "a_b", "path": ["hat", "brim"]}'),
            id="ways to a field",
        ),
        pytest.param(
            ('status=404 msg="lookup failed" path=/v2/hats/7', 'status=404 msg="lookup failed" path=/v2/heads/7'),
            id="what was asked for",
        ),
        pytest.param(("Undefined index: ean in x.php", "Undefined index: brand in x.php"), id="name before a place"),
        pytest.param(("load cart: pool is closed", "load user: pool is closed"), id="wrappers"),
        pytest.param(("sync stopped (pool is closed)", "sync stopped (disk is full)"), id="what is in parentheses"),
        pytest.param(('{"code": "a_b", "status": 400}', '{"code": "a_c", "status": 400}'), id="codes"),
    ],
)
def test_look_alikes_stay_apart(lookalikes: tuple[str, ...]) -> None:
    assert len(set(groups_of(*lookalikes))) == len(lookalikes)


@pytest.mark.timeout(60)
def test_failures_that_name_each_other_are_told_apart_in_time() -> None:
    """Each is the first clause of the other: nobody goes round in that circle."""
    assert len(set(groups_of("hat lost its head: shoe lost its foot", "shoe lost its foot: hat lost its head"))) == 2


def test_that_it_failed_makes_no_group_of_all_failures() -> None:
    hat, shoe = "hat does not fit head", "shoe does not fit foot"
    found = groups_of(*(f'{{"status": "FAILED", "cause": "{said}"}}' for said in (hat, shoe)), hat, shoe)
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_who_lacks_what_tells_others_apart_stands_alone() -> None:
    found = groups_of("sync stopped (pool is closed)", "sync stopped (disk is full)", "sync stopped")
    assert len(set(found)) == 3


def test_a_template_of_a_template_is_itself() -> None:
    """A group that is known by its template is found again by its template."""
    for masked in {grouping.mask(text) for text in [*(text for _, text in SAMPLES), *(text for text, _ in texts())]}:
        once = grouping.templates([masked])[masked]
        known = KnownGroup(grouping.fingerprint("throttled", once), "throttled", once)
        assert grouping.spots([masked], [known])[masked].known == {"throttled": known}


def test_a_group_of_another_release_keeps_its_name() -> None:
    old = KnownGroup("0123456789abcdef", "throttled", "<*> ERROR [pool-<*>] shop.Worker - HTTP 429 for <*> hats")
    line = {"text": "2026-03-01T10:00:07Z ERROR [pool-3] shop.Worker - HTTP 429 for 7 hats"}
    (answer,) = explain([line], known_groups=[old])
    assert answer["group"] == old.fingerprint


def test_what_says_more_than_a_known_group_makes_a_group_that_is_then_merged() -> None:
    (short,) = explain([{"text": "sync of shelves stopped"}])
    known = KnownGroup(short["group"], short["cause"], short["template"])
    (long,) = explain([{"text": "sync of shelves stopped (disk is full)"}], known_groups=[known])
    assert long["group"] != short["group"]
    later = KnownGroup(long["group"], short["cause"], long["template"])
    assert grouping.merges([known, later]) == {later.fingerprint: known.fingerprint}
    other = KnownGroup("v2other000000000", short["cause"], "sync of shelves stopped (pool is closed)")
    assert grouping.merges([known, later, other]) == {}


def test_a_guess_does_not_outweigh_what_the_broker_says() -> None:
    (guessed,) = explain([{"text": "gnome gateway closed"}])
    assert guessed["rule"].startswith("learned")
    (told,) = explain([{"text": "gnome gateway closed", "reason": "HeaderSizeExceeded"}])
    assert (told["cause"], told["rule"]) == ("oversized", "broker.header_size")
    (tired,) = explain([{"text": "gnome gateway closed", "reason": "MaxDeliveryCountExceeded"}])
    assert tired["cause"] == guessed["cause"]


def test_a_rule_that_knows_one_telling_knows_the_others() -> None:
    plain, known = Case("the shelf is locked by a gnome"), Case("the shelf is locked by a gnome (ORA-00060)")
    found = explain_cases({plain: 1, known: 1})
    assert found[plain].cause is found[known].cause is explain_cases({known: 1})[known].cause
    assert found[plain].fingerprint == found[known].fingerprint


def test_families_are_groups_and_no_two_are_one() -> None:
    made = list(texts())
    found = groups_of(*(text for text, _ in made))
    groups: dict[str, set[str]] = {}
    members: dict[str, set[str]] = {}
    for (_, family), group in zip(made, found, strict=True):
        groups.setdefault(family.name, set()).add(group)
        members.setdefault(group, set()).add(family.name)
    merged = [names for names in members.values() if len(names) > 1]
    assert merged == []
    assert sum(len(some) > 1 for some in groups.values()) <= 0.25 * len(FAMILIES)


def test_likeness_does_not_depend_on_the_order() -> None:
    templates = [f"sync stopped ({why})" for why in ("pool is closed", "disk is full", "pool is closed twice")]
    once = similarity.clusters(templates)
    for some in combinations(templates, 3):
        assert similarity.clusters(reversed(some)) == once


def test_a_comparison_says_why() -> None:
    apart = compare("load cart: pool is closed", "load user: pool is closed")
    assert not apart["same"]
    assert apart["because"] == [
        "both say: pool closed",
        "what is in front differs (load cart / load user), which tells them apart",
    ]
    one = compare("attempt 2/3: sync of 7 stopped (by ana@acme.test)", "sync of 8 stopped")
    assert one["same"]
    assert one["because"] == ["both say: sync stopped"]
    assert [line["text"] for line in one["texts"]] == [
        "attempt 2/3: sync of 7 stopped (by ana@acme.test)",
        "sync of 8 stopped",
    ]
    other = compare("GET https://a.test/carts gave HTTP 404", "KeyError: 'sku'")
    assert any("different things" in reason for reason in other["because"])
