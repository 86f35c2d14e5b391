"""A history as the ledger tells it, and what another policy would have made of it; on both databases."""

from pathlib import Path
from typing import Any

import pytest

from redrive.errors import SettingsError, UsageError
from redrive.ledger.selecting import Selection
from redrive.settings import load_policy
from redrive.stages.simulate import simulate
from tests.workshop import KEY_ERROR, REFUSED, Workshop


def past(folder: Path, database: str | None = None) -> Workshop:
    """Ten orders that fail once, four that always fail, two that a person has to look at."""
    workshop = Workshop(folder, database, requeue_attempts=1, delay_attempts=1)
    workshop.die(*[f"once {n}" for n in range(10)], *[f"always {n}" for n in range(4)], error=REFUSED)
    workshop.die("bug 1", "bug 2", error=KEY_ERROR)
    for _ in range(20):
        workshop.cycle()
        workshop.consume(lambda letter: REFUSED if letter.body.startswith(b"always") else None)
        workshop.advance(hours=2)
        if workshop.states() == {"presumed": 10, "escalated": 6}:
            return workshop
    raise AssertionError(workshop.states())


def replayed(workshop: Workshop, folder: Path, policy: str, selection: Selection = Selection()) -> dict[str, Any]:  # noqa: B008
    file = folder / "policy.yaml"
    file.write_text(policy)
    other = load_policy(file, workshop.settings.route("orders"), {})
    return simulate(workshop.settings, "orders", other, selection)


def test_a_replay_tells_what_was_and_what_would_have_been_and_changes_nothing(ledger_url: str, tmp_path: Path) -> None:
    workshop = past(tmp_path, ledger_url)
    before = workshop.query("select * from messages order by message_id"), workshop.query("select * from audit_events")
    same = replayed(workshop, tmp_path, "")
    was, would = same["total"]["was"], same["total"]["would"]
    assert was | {"longest_wait_seconds": 0} == would | {"longest_wait_seconds": 0}, "the same policy gives what was"
    assert (was["messages"], was["redelivered"], was["returns"]) == (16, 14, 4 * 2)
    assert (was["stayed"], was["escalated"], was["not_known"]) == (10, 6, 0)

    other = replayed(workshop, tmp_path, "delay_attempts: 0\ncauses: {application_bug: {verdict: requeue}}")
    by_cause = {row["cause"]: row["would"] for row in other["rows"]}
    network, bug = by_cause["transient_network"], by_cause["application_bug"]
    assert (network["sends"], network["returns"], network["escalated"]) == (14, 4, 4)
    assert (bug["sends"], bug["not_known"], bug["escalated"]) == (2, 2, 0)
    assert any("2 messages would have been sent once more" in line for line in other["not_known"])
    after = workshop.query("select * from messages order by message_id"), workshop.query("select * from audit_events")
    assert after == before

    part = replayed(workshop, tmp_path, "", Selection(causes=("application_bug",), until=workshop.now()))
    assert [row["cause"] for row in part["rows"]] == ["application_bug"]
    assert replayed(workshop, tmp_path, "", Selection(since=workshop.now()))["rows"] == []
    with pytest.raises(UsageError, match="orders-dql"):
        replayed(workshop, tmp_path, "", Selection(sources=("orders-dql",)))
    workshop.ledger.close()


def test_what_a_consumer_asked_to_have_later_is_no_return(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die("a", error=REFUSED)
    workshop.cycle()
    (letter,) = workshop.world.peek("orders")
    workshop.consume()
    workshop.world.put("orders-delay", letter)
    workshop.advance(minutes=1)
    workshop.cycle()
    assert workshop.query("select outcome, return_kind from redelivery_attempts where attempt = 1") == [
        ("returned", "delay")
    ]
    assert replayed(workshop, tmp_path, "")["total"]["was"]["returns"] == 0


def test_what_people_released_is_told_and_left_out(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.die("bug 1", "bug 2", error=KEY_ERROR)
    workshop.cycle()
    with workshop.ledger.write() as connection:
        connection.exec_driver_sql("update escalated_messages set decision = 'redeliver', decided_by = 'ana'")
    workshop.review()
    workshop.cycle()
    found = replayed(workshop, tmp_path, "")
    assert found["total"]["was"]["redelivered"] == 0
    assert any("2 messages were released by people" in line for line in found["not_known"])


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("requeue_attempt: 1", "requeue_attempt: is no part of a policy; did you mean requeue_attempts?"),
        ("schedule: '@daily'", "schedule: is no part of a policy"),
        ("requeue_attempts: -1", "requeue_attempts: "),
        ("backoff: {first: 7h}", "backoff.max: 1h is shorter than first, 7h"),
        ("causes: {bad_luck: {verdict: requeue}}", "causes.bad_luck: is not a cause"),
        ("causes: {throttled: {verdict: dance}}", "causes.throttled.verdict: "),
        ("[1]", "has to hold keys and values"),
        ("canary: {first: 0}", "canary.first: "),
    ],
)
def test_a_policy_that_is_none_is_refused_with_its_key(tmp_path: Path, policy: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refused:
        replayed(Workshop(tmp_path), tmp_path, policy)
    assert problem in str(refused.value)


def test_a_policy_says_only_what_is_different(tmp_path: Path) -> None:
    route = Workshop(tmp_path, causes={"throttled": {"rate": {"per_second": 2}}}).settings.route("orders")
    file = tmp_path / "policy.yaml"
    file.write_text("backoff: {factor: 3}\ncauses: {throttled: {verdict: escalate}}\ncanary: {first: 5}")
    other = load_policy(file, route, {})
    assert (other.backoff.factor, other.backoff.max) == (3, route.backoff.max)
    (throttled,) = other.causes.values()
    assert throttled.rate is not None
    assert (throttled.verdict, throttled.rate.per_second) == ("escalate", 2)
    assert (other.canary.first if other.canary else None, route.canary) == (5, None)
    assert other.sources == route.sources
