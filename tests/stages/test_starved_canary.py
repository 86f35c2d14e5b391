"""A group goes to several destinations, and its oldest messages all go to one that takes nothing: the others get theirs
all the same, and no more goes than the gate allows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import PermissionRefused, QueuesFailed
from redrive.ledger.engine import sql
from redrive.stages import consumers, deliver, pipeline
from tests.workshop import Workshop

STRANGE = "the flux capacitor said hm"  # nothing is known of it: a canary first
FULL = 40  # so many may be in flight


class Shops(Workshop):
    """A route whose messages go back to where they came from: shops that are well or sick."""

    def __init__(self, folder: Path, database: str, first: int = 2, **route: Any) -> None:
        super().__init__(folder, database, **{
            "canary": {"first": first, "grow": 5, "pass": 0.95},
            "destination": None,
            "rate": {"max_in_flight": FULL},
            "sources": [{"queue": "orders-dlq", "lease": "2s", "max_deliveries": 3, "origins": ["sick*", "well"]}],
        } | route)  # fmt: skip
        for shop in ("sick", "sick too", "well"):
            self.world.create(shop)

    def fail(self, shop: str, count: int) -> None:
        self.die(*(f"{shop} {number}" for number in range(count)), error=STRANGE, origin=shop)

    def run(self, times: int = 1) -> None:
        """So many runs, ten minutes apart, that may fail because of one destination; the shop that is well works."""
        for _ in range(times):
            run = self.begin()
            try:
                for _ in self.stages(run):
                    pass
            except QueuesFailed:
                pass
            pipeline.finish(self.settings, run, "succeeded", self.now)
            assert self.query("select count(*) from group_state where stage in ('canary', 'ramp') and sent > allowed")\
                == [(0,)]  # fmt: skip
            self.consume(queue="well")
            self.advance(minutes=10)

    def sent_to(self, shop: str) -> int:
        ((count,),) = self.query(f"select count(*) from redelivery_attempts where destination = '{shop}'"
                                 " and sent_at is not null")  # fmt: skip
        return int(count)


@pytest.fixture
def shops(ledger_url: str, tmp_path: Path) -> Shops:
    return Shops(tmp_path, ledger_url)


def trip(shops: Shops, patch: pytest.MonkeyPatch, shop: str = "sick") -> None:
    with shops.ledger.write() as connection:
        connection.execute(
            sql(
                "insert into breakers (route, destination, stage, cool_down_until, stage_at, began_at)"
                " values ('orders', :shop, 'tripped', :until_at, :now, :now)"
            ),
            {"shop": shop, "until_at": shops.now().replace(year=2100), "now": shops.now()},
        )


def forbid(call: str) -> Callable[[Shops, pytest.MonkeyPatch], None]:
    def make(shops: Shops, patch: pytest.MonkeyPatch) -> None:
        plainly = getattr(shops.broker, call)

        def refusing(queue: str, *arguments: Any) -> Any:
            if queue == "sick":
                raise PermissionRefused(f"{call} on {queue}: not authorized")
            return plainly(queue, *arguments)

        patch.setattr(shops.broker, call, refusing)

    return make


def remove(shops: Shops, patch: pytest.MonkeyPatch) -> None:
    del shops.world.queues["sick"]


def fill(shops: Shops, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deliver, "GIVE_UP", 0.0)
    patch.setattr(deliver, "LOOK_AGAIN", 0.0)
    shops.die(*(f"other {number}" for number in range(FULL)), queue="sick", error=None)


def stick(shops: Shops, patch: pytest.MonkeyPatch) -> None:
    plainly = consumers.healthy_share
    patch.setattr(consumers, "healthy_share", lambda c, queue: 0.0 if queue == "sick" else plainly(c, queue))


@pytest.mark.parametrize(
    "sicken",
    [
        pytest.param(trip, id="breaker"),
        pytest.param(forbid("depth"), id="nobody-may-look"),
        pytest.param(forbid("publish"), id="nobody-may-write"),
        pytest.param(remove, id="missing"),
        pytest.param(fill, id="full"),
        pytest.param(stick, id="consumers-stuck"),
    ],
)
def test_a_destination_that_takes_nothing_keeps_no_other_from_its_messages(
    shops: Shops, sicken: Callable[[Shops, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    shops.fail("sick", 6)
    shops.fail("well", 8)
    sicken(shops, monkeypatch)
    shops.run(8)
    assert (shops.sent_to("sick"), shops.sent_to("well")) == (0, 8)
    assert shops.audit() == []


def test_with_fewer_places_than_sick_destinations_each_has_its_turn(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one is well again: it need not wait until the other one is."""
    shops = Shops(shops.folder, shops.settings.database, first=1)
    shops.fail("sick", 4)
    shops.fail("sick too", 4)
    shops.fail("well", 1)
    trip(shops, monkeypatch)
    trip(shops, monkeypatch, "sick too")
    shops.run(6)
    assert shops.sent_to("well") == 1
    with shops.ledger.write() as connection:
        connection.execute(sql("delete from breakers where destination = 'sick too'"))
    shops.run(6)
    assert (shops.sent_to("sick"), shops.sent_to("sick too") > 0) == (0, True)


def test_what_its_destination_did_not_take_keeps_its_place_while_no_other_could_have_it(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    shops.fail("sick", 6)
    trip(shops, monkeypatch)
    shops.run(3)
    assert shops.states() == {"waiting": 2, "held": 4}
    assert shops.query("select count(*) from audit_events where action = 'hold_back'") == [(0,)]


def test_what_is_not_due_yet_keeps_its_place(shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    shops.fail("sick", 2)
    shops.fail("well", 2)
    run = shops.planned()
    with shops.ledger.write() as connection:
        connection.execute(
            sql("update messages set next_attempt_at = :later_at where state = 'waiting'"),
            {"later_at": shops.now().replace(year=2100)},
        )
    pipeline.finish(shops.settings, run, "succeeded", shops.now)
    shops.run(3)
    assert shops.query("select destination, state from messages order by message_id") == [
        ("sick", "waiting"), ("sick", "waiting"), ("well", "held"), ("well", "held"),
    ]  # fmt: skip


def test_messages_that_go_in_order_are_put_off_alike(shops: Shops, monkeypatch: pytest.MonkeyPatch) -> None:
    shops = Shops(shops.folder, shops.settings.database, order_by="attribute:message_id")
    shops.fail("sick", 6)
    shops.fail("well", 8)
    trip(shops, monkeypatch)
    shops.run(8)
    assert (shops.sent_to("sick"), shops.sent_to("well")) == (0, 8)
