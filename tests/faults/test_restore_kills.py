"""SIGKILL at every point of a restore, decisions of people waiting: what is in its queue is never sent as well.

After each kill somebody takes what lies in the queue away (a move by hand, a consumer), so that nothing but the ledger
can know of it; then people decide to redeliver everything, and the route runs as ever.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive.ledger.engine import sql
from redrive.stages import pipeline
from redrive.stages import restore as restore_stage
from tests.faults.crash import Points, ServedBroker, run_child, telling
from tests.workshop import KEY_ERROR, THROTTLED, Template, Workshop

# Many runs, each in processes of its own: how long they take depends on what else the machine does.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = 2
ROUTE: dict[str, Any] = {"backoff": {"first": "1h", "factor": 1, "max": "1h"}}
BODIES = [b"k0", b"k1", b"k2", b"t0", b"t1"]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_stage, "PAGE", PAGE)


def build(folder: Path) -> Workshop:
    """Three under review, on one of which somebody has decided, one released, and two that wait."""
    folder.mkdir()
    shop = Workshop(folder, **ROUTE)
    shop.die("k0", "k1", "k2", error=KEY_ERROR)
    shop.die("t0", "t1", error=THROTTLED)
    shop.cycle()
    assert shop.states() == {"escalated": 3, "waiting": 2}
    decide(shop, "redeliver", "k0")
    shop.review()
    decide(shop, "redeliver", "k1")
    return shop


def decide(shop: Workshop, decision: str, *bodies: str) -> None:
    """Ana decides about these, or about all that is open."""
    which = (
        f"payload in ({', '.join(repr(body) for body in bodies)})" if bodies else "status not in ('applied', 'decided')"
    )
    with shop.ledger.write() as connection:
        connection.execute(
            sql(f"update escalated_messages set decision = :decision, decided_by = 'ana', note = 'n' where {which}"),
            {"decision": decision},
        )


def take(shop: Workshop, queue: str) -> Counter[bytes]:
    found = Counter(shop.bodies(queue))
    shop.consume(queue=queue)
    return found


def work(shop: Workshop) -> Any:
    def restore(broker: ServedBroker, points: Points) -> dict[str, Any]:
        points.stage = "restore"
        shop.broker = broker  # type: ignore[assignment]
        run = shop.begin(even_if_paused=True)
        found = pipeline.restore(shop.settings, run, **shop.options())
        pipeline.finish(shop.settings, run, "succeeded", shop.now)
        return found

    return restore


def go_on(shop: Workshop) -> None:
    """Another process takes over, and everybody decides to send."""
    for _ in range(2):
        shop.advance(hours=2)
        shop.cycle()
        decide(shop, "redeliver")
        shop.review()


def test_a_kill_at_any_point_of_a_restore_never_lets_both_happen(tmp_path: Path) -> None:
    template = Template(build(tmp_path / "template"), **ROUTE)
    whole = template.start(tmp_path / "whole")
    death = run_child(whole.world, work(whole))
    assert death.result["restored"] == len(BODIES)
    whole.ledger.close()
    ends = Counter[str]()
    for fatal in [*telling(death.points), len(death.points)]:
        shop = template.start(tmp_path / str(fatal))
        death = run_child(shop.world, work(shop), fatal=fatal)
        assert not death.error, death.error
        put_back = take(shop, "orders-dlq")
        go_on(shop)
        sent = take(shop, "orders")
        doubted = dict(shop.query("select payload, e.status from escalated_messages e inner join messages m"
                                  " on m.message_id = e.message_id where m.state = 'restore_unknown'"))  # fmt: skip
        where = f"killed at point {fatal}, {death.last}: back {put_back}, sent {sent}, in doubt {doubted}"
        assert len(doubted) <= PAGE, where
        assert shop.states().get("restore_unknown", 0) == len(doubted), where
        assert set(doubted.values()) <= {"refused"}, where
        for body in BODIES:
            known = put_back[body] + sent[body]
            assert known <= 1, where
            assert known == 1 or body.decode() in doubted, where
        # Somebody looks.
        there = [body.decode() for body in put_back if body.decode() in doubted]
        decide(shop, "discard", *there) if there else None
        missing = [text for text in doubted if text not in there]
        decide(shop, "not_there", *missing) if missing else None
        shop.review()
        go_on(shop)
        assert put_back + sent + take(shop, "orders") == Counter(BODIES), where
        assert shop.states().keys() <= {"sent", "presumed", "discarded"}, where
        assert shop.audit() == [], where
        ends["in doubt" if doubted else "clear"] += 1
        shop.ledger.close()
    assert ends["in doubt"] > 5, ends
    assert not death.signal, "the last one was left alone"
