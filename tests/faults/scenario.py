"""The state in which a worker is killed, and what must hold whatever happened to it.

The state is rich on purpose: a first run has sent, escalated and delayed messages, some sends have come back, people
have decided, and new dead letters and delayed messages lie in the queues. Every message has a body of its own.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from redrive.ledger.engine import sql
from redrive.message import DeadLetter, body_hash
from redrive.stages import pipeline
from tests.faults.crash import Points, ServedBroker
from tests.workshop import KEY_ERROR, QUEUES, REFUSED, THROTTLED, Pipelining, Template, Workshop

CONFIRM_WINDOW = 4
ROUTE: dict[str, Any] = {
    "drain": {"wait": "0s", "flush_messages": 10, "lease": "5m"},
    "deliver": {"slice": 10, "confirm_window": CONFIRM_WINDOW},
    "requeue_attempts": 5,
}
CORRECTED = "k1, corrected"
CORRECTED_HEADERS = '{"tenant": "blue", "message_id": null}'
#: Where a message may be when nothing is left to do.
ENDS = {"sent", "presumed", "escalated", "discarded"}


class Scenario:
    """A route in full swing; :meth:`start` gives any number of workshops in exactly that state."""

    def __init__(
        self, folder: Path, database: str | None = None, kind: type[Workshop] = Pipelining, **route: Any
    ) -> None:
        self.route = ROUTE | route
        self.database = database
        shop = kind(folder / "template", database, **self.route)
        old = [f"r{i}" for i in range(6)]
        shop.die(*old, error=REFUSED)
        shop.die("k0", "k1", "k2", "k3", error=KEY_ERROR)
        shop.die("t0", "t1", error=THROTTLED)
        shop.cycle()
        self.arrived: Counter[bytes] = Counter(shop.bodies("orders"))
        shop.consume(lambda letter: REFUSED if letter.body in (b"r0", b"r1", b"r2") else None)
        for body, decision, corrected in (
            ("k0", "redeliver", None), ("k1", "edit", CORRECTED), ("k2", "discard", None)
        ):  # fmt: skip
            with shop.ledger.write() as connection:
                connection.execute(
                    sql(
                        "update escalated_messages set decision = :decision, decided_by = 'ana',"
                        " corrected_body = :corrected, corrected_headers = :headers where payload = :body"
                    ),
                    {
                        "decision": decision,
                        "corrected": corrected,
                        "body": body,
                        "headers": CORRECTED_HEADERS if corrected else None,
                    },
                )
        shop.advance(minutes=10)
        new = [f"n{i}" for i in range(9)]
        shop.die(*new, error=REFUSED)
        shop.die("b0", "b1", error=KEY_ERROR)
        shop.die("d0", "d1", error=None, queue="orders-delay")
        self.bodies = [*old, "k0", "k1", "k2", "k3", "t0", "t1", *new, "b0", "b1", "d0", "d1"]
        self._template = Template(shop, **self.route)

    def start(self, folder: Path, database: str | None = None) -> Workshop:
        """A workshop of its own in this state; on PostgreSQL ``database`` is a copy of the template's."""
        return self._template.start(folder, database)

    # --- work --------------------------------------------------------------------------------------------

    def whole_run(self, shop: Workshop) -> Callable[[ServedBroker, Points], Any]:
        """One whole run, review included, as a child does it."""

        def work(broker: ServedBroker, points: Points) -> dict[str, Any]:
            shop.broker = broker  # type: ignore[assignment]
            run = shop.begin(even_if_paused=True)
            points.stage = "review"
            pipeline.review(shop.settings, run, clock=shop.now)
            report: dict[str, Any] = {}
            points.stage = "observe"
            following = dict(zip(STAGES, [*STAGES[1:], "finish"], strict=True))
            for name, counts in shop.stages(run):
                points.stage, report = following[name], counts
            pipeline.finish(shop.settings, run, "succeeded", shop.now)
            return report

        return work

    def complete(self, shop: Workshop) -> None:
        """Another process takes over when all leases are over, and goes on until nothing is left to do.

        A run more shows that nothing begins anew.
        """
        for number in range(3):
            if number == 2 and not self._unfinished(shop):
                break
            shop.advance(minutes=30)
            shop.review()
            shop.cycle()

    @staticmethod
    def _unfinished(shop: Workshop) -> bool:
        return bool(shop.states().keys() - ENDS or any(shop.broker.depth(queue).total for queue in QUEUES[1:]))

    # --- what must hold ----------------------------------------------------------------------------------

    def verify(self, shop: Workshop, *, kills: int, resent: bool = False) -> None:
        """Nothing lost, nothing doubled in silence, at most a window unknown per kill, and it all adds up."""
        taken = _take_all(shop)
        for letter in taken:
            if letter.body == CORRECTED.encode():
                said = {header.name: header.value for header in letter.headers}
                assert said["tenant"] == "blue", "a correction goes out whole, whoever sends it"
                assert "message_id" not in said
        arrived = self.arrived + Counter(letter.body for letter in taken)
        arrived[b"k1"] += arrived.pop(CORRECTED.encode(), 0)
        rows = shop.query(
            "select m.body_hash, m.state, m.message_id, count(a.sent_at), count(a.unknown_at),"
            " count(case when a.sent_at is not null and a.unknown_at is not null then 1 end)"
            " from messages m left join redelivery_attempts a on a.message_id = m.message_id"
            " group by m.body_hash, m.state, m.message_id"
        )
        known = {bytes(row[0]): row for row in rows}
        assert len(rows) == len(known) == len(self.bodies), "each message is in the ledger exactly once"
        unknown_sends = 0
        for body in map(str.encode, self.bodies):
            _, state, message_id, sent, unknown, both = known[body_hash(body)]
            unknown_sends += unknown
            # A send that we know of arrived; one of which nobody knows arrived or not.
            assert sent <= arrived[body] <= sent + unknown, (body, state, message_id, sent, unknown, arrived[body])
            assert resent or not both, "nothing unknown is sent again unless the route says so"
            assert state in ENDS, (body, state)
            assert state != "sent" or sent, (body, state)
        assert unknown_sends <= kills * CONFIRM_WINDOW, "at most one confirm window per kill"
        for queue in ("orders-dlq", "orders-delay"):
            assert shop.broker.depth(queue).total == 0, f"{queue} is drained"
        assert known[body_hash(b"k2")][1] == "discarded"
        self._verify_reviews(shop)
        for row in shop.query("select * from message_balance"):
            assert row[-3:] == (0, 0, 0), row
        assert shop.audit() == []
        self._verify_files(shop)

    def _verify_reviews(self, shop: Workshop) -> None:
        twice = shop.query(
            "select message_id, count(*) from escalated_messages where status in ('open', 'decided', 'refused',"
            " 'reopened') group by message_id having count(*) > 1"
        )
        assert twice == [], "one open review row per message"
        pending = shop.query(
            "select e.message_id, e.status, m.state from escalated_messages e inner join messages m"
            " on m.message_id = e.message_id where (e.status <> 'applied') <> (m.state = 'escalated')"
        )
        assert pending == [], "a review row is open exactly while its message waits for a person"
        released = shop.query(
            "select message_id from redelivery_attempts where mode = 'release' group by message_id having count(*) > 1"
        )
        assert released == [], "a person's decision is carried out once"

    def _verify_files(self, shop: Workshop) -> None:
        staging = Path(shop.settings.staging)
        files = {str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()}
        counted = {
            row[0] for row in shop.query("select uri from staging_batches where state in ('recorded', 'settled')")
        }
        assert files == counted, "every recorded batch has its file, and there is no other file"


STAGES = ("observe", "drain", "load", "resolve", "plan", "deliver", "escalate", "report")


def _take_all(shop: Workshop) -> list[DeadLetter]:
    """Everything that lies at the destination."""
    shop.advance(minutes=30)
    taken: list[DeadLetter] = []
    while received := shop.broker.receive("orders", limit=1000, wait=timedelta(0), lease=timedelta(minutes=1)):
        taken += [letter for letter, _ in received]
        shop.broker.settle("orders", [receipt for _, receipt in received])
    return taken
