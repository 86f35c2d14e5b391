"""Where a message goes: the configuration of the run that sends says it, and one that is wrong harms nothing."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing, QueuesFailed
from redrive.ledger.delivery import aiming
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.selecting import Selection
from redrive.policy.aims import LONGEST_ORIGIN, Aim, Aims
from redrive.stages import failed_queues, pipeline, preview
from tests import blank
from tests.ledger.planting import NOW, Plant
from tests.workshop import KEY_ERROR, REFUSED, Workshop

TYPO: dict[str, Any] = {"destination": {"queue": "ordres"}}


@pytest.fixture
def shop(ledger_url: str, tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, ledger_url)
    yield workshop
    workshop.ledger.close()


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path)
    yield workshop
    workshop.ledger.close()


def configure(workshop: Workshop, **route: Any) -> None:
    """From now on runs have the workshop's route with these changes."""
    workshop.settings = workshop.configure(workshop.settings.database, **route)


def listed(*origins: str) -> list[dict[str, Any]]:
    """The workshop's source of dead letters, with these origins."""
    return [{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": list(origins)}]


def away(action: str, of: str = "") -> Callable[[str, str], None]:
    """The broker does not answer this action, on one queue or on any."""

    def before(asked: str, queue: str) -> None:
        if asked == action and of in ("", queue):
            raise BrokerUnavailable(f"{asked} on queue {queue}: away")

    return before


def decide(workshop: Workshop, decision: str = "redeliver") -> None:
    with workshop.ledger.write() as connection:
        connection.execute(
            sql("update escalated_messages set decision = :decision, decided_by = 'ana' where status <> 'applied'"),
            {"decision": decision},
        )


def attempts(workshop: Workshop) -> list[tuple[Any, ...]]:
    return workshop.query("select attempt, destination from redelivery_attempts order by message_id, attempt")


# --- a destination that is configured ---------------------------------------------------------------------


def test_a_mistyped_destination_fails_the_run_and_changes_nothing(shop: Workshop) -> None:
    configure(shop, **TYPO)
    shop.die("1", "2", error=REFUSED)
    run = shop.begin()
    with pytest.raises(QueueMissing, match=r"routes\.orders\.destination\.queue.*'ordres'") as raised:
        for _ in shop.stages(run):
            pass
    pipeline.finish(shop.settings, run, "failed", shop.now)
    assert raised.value.exit_code == 1
    assert sorted(shop.bodies("orders-dlq")) == [b"1", b"2"], "nothing was drained for a place that isn't there"
    configure(shop)
    shop.cycle()
    assert sorted(shop.bodies("orders")) == [b"1", b"2"]


def test_a_destination_that_is_mistyped_later_leaves_the_messages_as_they_are(shop: Workshop) -> None:
    shop.die("1", "2", error=REFUSED)
    shop.world.faults.publishes.extend(["retry", "retry"])
    shop.cycle()
    assert shop.states() == {"waiting": 2}
    configure(shop, **TYPO)
    for stage in ("observe", "deliver"):
        run = shop.begin()
        if stage == "deliver":
            shop.advance(hours=2)
            assert "routes.orders.destination.queue: 'ordres'" in shop.deliver(run)["failed:ordres"]
        else:
            with pytest.raises(QueueMissing, match=r"routes\.orders\.destination\.queue: 'ordres'"):
                pipeline.observe(shop.settings, run, **shop.options())
        pipeline.finish(shop.settings, run, "failed", shop.now)
    assert shop.states() == {"waiting": 2}
    assert shop.query("select count(*) from escalated_messages") == [(0,)]
    configure(shop)
    shop.advance(hours=2)
    shop.cycle()
    assert sorted(shop.bodies("orders")) == [b"1", b"2"]
    assert shop.audit() == []


def test_the_destination_of_one_source_is_named_by_its_own_key(workshop: Workshop) -> None:
    sources = [
        {"queue": "orders-dlq"},
        {"queue": "orders-delay", "kind": "delay", "delay": "1s", "destination": "odrers"},
    ]
    configure(workshop, sources=sources)
    workshop.die("1", error=REFUSED)
    with pytest.raises(QueueMissing, match=r"routes\.orders\.sources\.1\.destination.*'odrers'"):
        workshop.cycle()


def test_what_waits_held_or_with_people_goes_where_the_configuration_now_says(shop: Workshop) -> None:
    shop.world.create("orders-2")
    shop.die("waits", error=REFUSED)
    shop.die("asked", error=KEY_ERROR)
    shop.world.faults.publishes.append("retry")
    shop.cycle()
    assert shop.states() == {"waiting": 1, "escalated": 1}
    configure(shop, destination={"queue": "orders-2"})
    shop.advance(hours=2)
    shop.cycle()
    assert shop.query("select destination from escalated_messages") == [("orders-2",)], "people see where it would go"
    decide(shop)
    shop.review()
    shop.cycle()
    assert sorted(shop.bodies("orders-2")) == [b"asked", b"waits"]
    assert shop.bodies("orders") == []
    assert {row[1] for row in attempts(shop)} == {"orders-2"}
    ((count, selection),) = shop.query("select count, selection from audit_events where action = 'aim'")
    assert count == 2
    assert selection == '{"changed": [["orders", "orders-2", 2]]}'
    assert shop.audit() == []


def test_what_was_escalated_for_a_missing_destination_goes_to_the_new_one_when_released(shop: Workshop) -> None:
    """As earlier versions left it: the name of the day of the load in the message, and a question to a person."""
    shop.die("1", "2", error=KEY_ERROR)
    shop.cycle()
    with shop.ledger.write() as connection:
        for table in ("messages", "escalated_messages"):
            connection.execute(
                sql(f"update {table} set destination = 'ordres', reason = 'the destination ''ordres'' does not exist'")
            )
    decide(shop)
    shop.review()
    shop.cycle()
    assert sorted(shop.bodies("orders")) == [b"1", b"2"]
    assert shop.query("select distinct status from escalated_messages") == [("applied",)]


def test_a_decision_that_was_taken_up_before_the_destination_changed_goes_to_the_new_one(workshop: Workshop) -> None:
    workshop.world.create("orders-2")
    workshop.die("1", error=KEY_ERROR)
    workshop.cycle()
    decide(workshop)
    workshop.review()
    configure(workshop, destination={"queue": "orders-2"})
    run = workshop.begin()
    workshop.deliver(run)
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.bodies("orders-2") == [b"1"], "a delivery alone does what its configuration says too"


def test_an_unknown_send_is_repeated_to_where_it_may_be_already(workshop: Workshop) -> None:
    workshop.world.create("orders-2")
    configure(workshop, on_unknown="resend")
    workshop.die("1", error=REFUSED)
    workshop.world.faults.publishes.append("unknown")
    workshop.cycle()
    assert workshop.states() == {"unknown": 1}
    configure(workshop, on_unknown="resend", destination={"queue": "orders-2"})
    for _ in range(4):
        workshop.advance(hours=2)
        workshop.cycle()
    assert workshop.bodies("orders-2") == []
    assert workshop.bodies("orders"), "the same attempt: at the old place a broker can drop the second of two"
    assert attempts(workshop) == [(1, "orders")]


def test_an_unknown_send_whose_queue_is_gone_is_asked_about_and_released_to_the_new_one(workshop: Workshop) -> None:
    workshop.world.create("orders-2")
    configure(workshop, on_unknown="resend")
    workshop.die("1", error=REFUSED)
    workshop.world.faults.publishes.append("unknown")
    workshop.cycle()
    workshop.world.remove("orders")
    delay = {"queue": "orders-delay", "kind": "delay", "delay": "30s"}
    new = {"sources": [{"queue": "orders-dlq"}, delay], "destination": {"queue": "orders-2"}}
    configure(workshop, on_unknown="resend", **new)
    for _ in range(4):
        workshop.advance(hours=2)
        workshop.cycle()
    assert workshop.query("select payload, reason from escalated_messages") == [
        ("1", "the destination 'orders' does not exist")
    ]
    decide(workshop)
    workshop.review()
    workshop.cycle()
    assert workshop.bodies("orders-2") == [b"1"]
    assert attempts(workshop) == [(1, "orders"), (2, "orders-2")], "each attempt keeps where it went"


def test_a_return_of_an_earlier_destination_goes_on_to_the_new_one(shop: Workshop) -> None:
    shop.world.create("orders-2")
    shop.die("1", error=REFUSED)
    shop.cycle()
    configure(shop, destination={"queue": "orders-2"})
    shop.consume(lambda _: REFUSED)
    for _ in range(2):
        shop.advance(hours=2)
        shop.cycle()
    assert shop.bodies("orders-2") == [b"1"]
    assert attempts(shop) == [(1, "orders"), (2, "orders-2")]


def test_a_dry_run_tells_the_destination_of_today(workshop: Workshop) -> None:
    workshop.world.create("orders-2")
    workshop.die("1", error=REFUSED)
    workshop.world.faults.publishes.append("retry")
    workshop.cycle()
    workshop.advance(hours=2)
    configure(workshop, destination={"queue": "orders-2"})
    seen = preview.preview(workshop.settings, "orders", Selection(), now=workshop.now())
    assert seen["due_now"] == [{"destination": "orders-2", "messages": 1}]


# --- a destination that is missing and was not configured -------------------------------------------------


def test_a_missing_origin_is_one_messages_trouble_and_stops_nobody(shop: Workshop) -> None:
    configure(shop, destination=None, sources=listed("gone"))
    shop.die("lost", error=REFUSED, origin="gone")
    shop.die("good", error=REFUSED)
    report = shop.cycle()
    assert (report["redelivered"], report["escalated"]) == (1, 1)
    assert shop.bodies("orders") == [b"good"]
    assert shop.query("select payload, reason from escalated_messages") == [
        ("lost", "the destination 'gone' does not exist")
    ]
    configure(shop)
    decide(shop)
    shop.review()
    shop.cycle()
    assert sorted(shop.bodies("orders")) == [b"good", b"lost"], "a configured destination stands for a missing origin"


def test_a_destination_that_is_left_out_again_means_the_origin_that_the_copy_told(workshop: Workshop) -> None:
    workshop.world.create("orders-2")
    configure(workshop, destination={"queue": "orders-2"})
    workshop.die("1", error=REFUSED)
    workshop.world.faults.publishes.append("retry")
    workshop.cycle()
    configure(workshop, destination=None)
    workshop.advance(hours=2)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"1"]


# --- an origin that a header tells ------------------------------------------------------------------------


def test_a_forged_origin_makes_us_publish_nowhere(shop: Workshop) -> None:
    shop.world.create("payments")
    configure(shop, destination=None)
    shop.die("forged", error=REFUSED, origin="payments")
    shop.die("good", error=REFUSED)
    report = shop.cycle()
    assert (report["redelivered"], report["escalated"]) == (1, 1)
    assert (shop.bodies("payments"), shop.bodies("orders")) == ([], [b"good"])
    [(payload, reason, destination)] = shop.query("select payload, reason, destination from escalated_messages")
    assert (payload, destination) == ("forged", None)
    for named in ("payments", "orders-dlq", "routes.orders.sources.0.origins"):
        assert named in reason
    decide(shop)
    shop.review()
    shop.cycle()
    assert shop.bodies("payments") == [], "to release it is not to trust its header"
    assert shop.query("select status from escalated_messages") == [("reopened",)]
    assert shop.audit() == []


def test_a_listed_origin_is_trusted_from_then_on(shop: Workshop) -> None:
    shop.world.create("payments")
    configure(shop, destination=None)
    shop.die("1", error=REFUSED, origin="payments")
    shop.cycle()
    configure(shop, destination=None, sources=listed("pay*"))
    decide(shop)
    shop.review()
    shop.cycle()
    assert shop.bodies("payments") == [b"1"]


def test_an_origin_that_is_listed_no_more_keeps_what_waits_for_it_back(shop: Workshop) -> None:
    shop.world.create("payments")
    configure(shop, destination=None, sources=listed("payments"))
    shop.die("1", error=REFUSED, origin="payments")
    shop.world.faults.publishes.append("retry")
    shop.cycle()
    assert shop.states() == {"waiting": 1}
    configure(shop, destination=None)
    shop.advance(hours=2)
    shop.cycle()
    assert shop.bodies("payments") == []
    assert shop.states() == {"escalated": 1}


def test_a_broker_that_proves_origins_needs_no_list(workshop: Workshop) -> None:
    workshop.world.create("payments")
    workshop.broker.capabilities = replace(workshop.broker.capabilities, proves_origin=True)
    configure(workshop, destination=None)
    workshop.die("1", error=REFUSED, origin="payments")
    workshop.cycle()
    assert workshop.bodies("payments") == [b"1"]


def test_a_broker_that_is_away_gives_nothing_to_people(workshop: Workshop) -> None:
    configure(workshop, destination=None)
    workshop.die("1", error=REFUSED)
    workshop.world.faults.before = away("origins")
    run = workshop.begin()
    with pytest.raises(BrokerUnavailable):
        for _ in workshop.stages(run):
            pass
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    assert workshop.query("select count(*) from escalated_messages") == [(0,)]
    workshop.world.faults.before = None
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"1"]


def test_the_broker_is_asked_only_where_no_destination_is_configured(workshop: Workshop) -> None:
    workshop.world.faults.before = away("origins")
    workshop.die("1", error=REFUSED)
    workshop.cycle()
    assert workshop.bodies("orders") == [b"1"]


@pytest.mark.parametrize(
    ("listed", "vouched", "origin", "goes_to"),
    [
        (["orders"], [], "orders", "orders"),
        (["orders"], [], "orders-2", None),
        (["orders"], [], "Orders", None),
        (["shop.*"], [], "shop.bills", "shop.bills"),
        (["shop.*"], [], "shop", None),
        (["shop.*"], [], "a.shop.bills", None),
        (["*"], [], "anything", "anything"),
        ([], ["orders"], "orders", "orders"),
        ([], [], "orders", None),
        (["shop_%*"], [], "shop-bills", None),
        (["*"], [], None, None),
    ],
)
def test_what_is_trusted_is_the_same_at_the_load_and_in_sql(
    ledger_url: str, listed: list[str], vouched: list[str], origin: str | None, goes_to: str | None
) -> None:
    ledger = Ledger(ledger_url)
    blank.upgrade(ledger, NOW)
    aim = Aim.back(listed, vouched)
    assert aim.at(origin) == goes_to
    plant = Plant(ledger)
    plant.messages(1, origin=origin, destination="elsewhere")
    aiming.aim(ledger, plant.lease, Aims({"orders-dlq": aim}), plant.now)
    assert plant.rows("select destination from messages") == [(goes_to,)]
    ledger.close()


def test_an_origin_longer_than_any_name_is_shortened(workshop: Workshop) -> None:
    configure(workshop, destination=None, sources=listed("o*"))
    workshop.die("1", error=REFUSED, origin="o" * 100_000)
    workshop.cycle()
    ((length,),) = workshop.query("select length(origin) from messages")
    assert length <= LONGEST_ORIGIN
    assert workshop.states() == {"escalated": 1}


@pytest.mark.parametrize("call", ["depth", "publish"])
@pytest.mark.parametrize("error", [PermissionRefused, BrokerUnavailable])
def test_what_is_wrong_with_one_destination_keeps_no_other_waiting(
    tmp_path: Path, call: str, error: type[BrokerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    shops = [f"shop-{number}" for number in range(8)]
    workshop = Workshop(
        tmp_path,
        destination=None,
        sources=[{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["shop-*"]}],
    )
    for shop in shops:
        workshop.world.create(shop)
        workshop.die(*(f"{shop} {number}" for number in range(5)), origin=shop)
    workshop.die("one more", origin="shop-5")  # what is wrong is the fullest, so it comes first
    plainly = getattr(workshop.broker, call)

    def refusing(queue: str, *arguments: Any) -> Any:
        if queue == "shop-5":
            raise error(f"{call} on {queue}: not authorized")
        return plainly(queue, *arguments)

    monkeypatch.setattr(workshop.broker, call, refusing)
    workshop.die("for people", error=KEY_ERROR, origin="shop-1")
    # A publish that nothing is known of asks a person and fails no run.
    unknown = (call, error) == ("publish", BrokerUnavailable)
    for number in range(3):  # the queue is looked at from the second run on
        run = workshop.begin()
        with contextlib.nullcontext() if unknown else pytest.raises(QueuesFailed, match=f"queue shop-5 failed.*{call}"):
            for _ in workshop.stages(run):
                pass
        pipeline.finish(workshop.settings, run, "failed", workshop.now)
        assert sum(len(workshop.bodies(shop)) for shop in shops) == 35 + number
        asked = workshop.states()["escalated"]
        assert asked == 1 or (unknown and number > 0), "people are asked in the same run"
        workshop.die(f"later {number}", origin="shop-2")
        workshop.advance(minutes=10)


def test_a_destination_that_cannot_be_looked_at_fails_the_run_also_where_nothing_is_due_there(tmp_path: Path) -> None:
    """What was sent there is not presumed while nobody sees it, and a success would say that all is well."""
    workshop = Workshop(
        tmp_path,
        destination=None,
        sources=[{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["shop-*"]}],
    )
    for shop in ("shop-1", "shop-2"):
        workshop.world.create(shop)
        workshop.die(f"to {shop}", error=REFUSED, origin=shop)
    workshop.cycle()
    workshop.world.faults.before = away("depth", "shop-1")
    workshop.advance(minutes=1)
    run = workshop.begin()
    with pytest.raises(BrokerUnavailable):
        pipeline.observe(workshop.settings, run, tries_left=True, **workshop.options())
    with pytest.raises(QueuesFailed, match="queue shop-1 failed: BrokerUnavailable"):
        for _ in workshop.stages(run):
            pass
    assert workshop.query("select count(*) from queue_observations where queue = 'shop-2'") == [(2,)]


def test_where_no_destination_may_be_looked_at_nothing_is_drained(workshop: Workshop) -> None:
    workshop.die("1", error=REFUSED)
    workshop.world.faults.forbidden = {("orders", "depth")}
    with pytest.raises(PermissionRefused, match="orders"):
        workshop.cycle()
    assert workshop.bodies("orders-dlq") == [b"1"]


def test_of_a_publish_that_sent_nothing_all_wait_and_nobody_is_asked(workshop: Workshop) -> None:
    workshop.die("1", "2", "3", error=REFUSED)
    run = workshop.begin()
    for name, _ in workshop.stages(run):
        if name == "plan":
            workshop.world.faults.before = away("publish")
    pipeline.finish(workshop.settings, run, "succeeded", workshop.now)
    assert workshop.states() == {"waiting": 3}
    assert workshop.query("select sum(send_failures) from messages") == [(0,)]
    workshop.world.faults.before = None
    workshop.advance(minutes=1)
    workshop.cycle()
    assert sorted(workshop.bodies("orders")) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("refused", "looks"),
    [
        pytest.param((), failed_queues.UNREACHABLE, id="none-answers"),
        pytest.param(range(1, 30, 2), 30, id="every-second-one-is-refused-by-a-broker-that-answers"),
    ],
)
def test_a_broker_that_cannot_be_reached_is_not_asked_for_each_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Sequence[int], looks: int
) -> None:
    workshop = Workshop(
        tmp_path,
        destination=None,
        sources=[{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["shop-*"]}],
    )
    for number in range(30):
        workshop.world.create(f"shop-{number}")
        workshop.die("hat", origin=f"shop-{number}")
    run = workshop.planned()
    asked = []

    def away(queue: str) -> Any:
        asked.append(queue)
        raise PermissionRefused("not yours") if len(asked) - 1 in refused else BrokerUnavailable("nobody answers")

    monkeypatch.setattr(workshop.broker, "depth", away)
    if refused:
        assert sum(name.startswith("failed:") for name in workshop.deliver(run)) == 30
    else:
        with pytest.raises(BrokerUnavailable):
            workshop.deliver(run)
    assert len(asked) == looks
    assert workshop.states() == {"waiting": 30}
