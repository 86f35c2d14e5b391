"""Ledgers with a history, planted through the ledger's own operations: no broker, no staging files, no Spark."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.ledger import leases
from redrive.ledger.delivery import claims, windows
from redrive.ledger.delivery.claims import ClaimFilter, ClaimTerms, Room, Slice
from redrive.ledger.delivery.ordering import InOrder
from redrive.ledger.delivery.windows import Mark
from redrive.ledger.drain import batches, groups, loading
from redrive.ledger.drain.groups import Group
from redrive.ledger.drain.loading import Classified, Loaded
from redrive.ledger.engine import Ledger
from redrive.ledger.transactions import RouteLease
from redrive.lifecycle import UNPLANNED
from redrive.message import body_hash, message_id_of
from tests.probe import Probe

NOW = datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def entering(state: str) -> str:
    """SQL that puts messages into ``state`` behind the ledger's back, as far as its constraints allow it."""
    plan = "null" if state in UNPLANNED else "coalesce(plan, 'requeue')"
    return f"state = '{state}', plan = {plan}, next_attempt_at = coalesce(next_attempt_at, changed_at)"


class Plant(Probe):
    """One route's ledger and the lease of its present run."""

    def __init__(self, ledger: Ledger, route: str = "orders", **options: Any) -> None:
        self.ledger = ledger
        self.route = route
        self.now = NOW
        self.runs = 0
        self.lease = self.begin(**options)

    def begin(self, *, at_once: bool = False, **options: Any) -> RouteLease:
        """Begin a run; one that still holds the route is over, an hour ago or just now."""
        if at_once:
            leases.release(self.ledger, self.lease, status="succeeded", now=self.now)
        elif self.runs:
            self.now += timedelta(hours=1)
        self.runs += 1
        self.lease = leases.acquire(
            self.ledger, self.route, f"{self.route}-{self.runs}", holder="test", trigger="test", ttl=MINUTE,
            now=self.now, **options,
        )  # fmt: skip
        return self.lease

    def gate(self, group: int, stage: str, *, allowed: int = 0) -> None:
        """The group's gate is at this stage since now."""
        self.change(
            "insert into breakers (route, group_id, stage, allowed, stage_at, began_at)"
            " values (:route, :group, :stage, :allowed, :now, :now)",
            route=self.route, group=group, stage=stage, allowed=allowed, now=self.now,
        )  # fmt: skip

    # --- copies -----------------------------------------------------------------------------------------

    def batch(self, copies: int, *, source: str = "orders-dlq", kind: str = "dead_letter") -> int:
        """A batch that is recorded with so many copies."""
        batch_id, _ = batches.open_batch(
            self.ledger, self.lease, source=source, kind=kind, shard=0,
            path_of=lambda route, source, batch_id, _: f"{route}/{source}/{batch_id}.parquet", now=self.now,
        )  # fmt: skip
        batches.record(self.ledger, self.lease, batch_id, copies=copies, size=100, now=self.now)
        batches.settled(self.ledger, batch_id, count=copies, now=self.now)
        return batch_id

    def copy(self, batch_id: int, row: int, body: bytes = b"{}", **fields: Any) -> Classified:
        """One classified copy; every copy has a broker id of its own unless told."""
        at = self.ledger.dialect.stored(self.now)
        values: dict[str, Any] = {
            "message_id": message_id_of(batch_id, row),
            "batch_id": batch_id,
            "source": "orders-dlq",
            "kind": "dead_letter",
            "destination": "orders",
            "broker_message_id": f"b-{batch_id}-{row}",
            "body_hash": body_hash(body),
            "body_bytes": len(body),
            "enqueued_at": at,
            "dead_lettered_at": at,
            "received_at": at,
            "deliveries": 3,
            "redrive_id": None,
            "redrive_attempt": None,
            "message_key": None,
            "order_key": None,
            "cause": "transient_network",
            "group_id": None,
            "headers_hash": b"h" * 16,
        }
        return Classified(**values | fields)

    def load(self, *fields: dict[str, Any], source: str = "orders-dlq") -> tuple[Loaded, list[int]]:
        """Stage and load one batch with a copy per argument; what they were, and their copy ids."""
        batch_id = self.batch(len(fields), source=source)
        copies = [self.copy(batch_id, row, **({"source": source} | some)) for row, some in enumerate(fields)]
        return loading.load(self.ledger, self.lease, [batch_id], copies, self.now), [c.message_id for c in copies]

    def messages(self, count: int, **fields: Any) -> list[int]:
        """So many new messages."""
        _, ids = self.load(*[{"body": f"body {n}".encode(), **fields} for n in range(count)])
        return ids

    def group(self, fingerprint: str = "f1", cause: str = "transient_network") -> int:
        """The id of a failure group."""
        one = Group(fingerprint, cause, f"template of {fingerprint}", "example")
        return groups.ensure_groups(self.ledger, self.lease, [one], self.now)[fingerprint]

    # --- sends ------------------------------------------------------------------------------------------

    def stand(self, group_id: int) -> None:
        """A standing decision about the group, for a day."""
        self.change(
            "insert into standing_decisions (group_id, decision, decided_by, note, created_at, until_at)"
            " values (:id, 'discard', 'ana', 'known', :now, :later)",
            id=group_id,
            now=self.now,
            later=self.now + timedelta(days=1),
        )

    def make_due(self, plan: str = "requeue") -> None:
        """Every classified message waits and is due, as a plan would have it."""
        self.change(
            "update messages set state = 'waiting', plan = :plan, next_attempt_at = :now where state = 'classified'",
            plan=plan,
            now=self.now,
        )

    def claim(self, limit: int = 1000, **options: Any) -> Slice | None:
        return claims.claim(self.ledger, self.lease, *self.asking(limit, **options), self.now)

    def asking(
        self,
        limit: int = 1000,
        *,
        shard: int = 0,
        rooms: Sequence[Room] = (),
        task_try: str = "",
        in_order: bool = False,
        **wanted: Any,
    ) -> tuple[ClaimFilter, ClaimTerms]:
        """What a claim is told; in order with all sources drained by now."""
        turns = InOrder(self.now) if in_order else None
        terms = ClaimTerms(limit, timedelta(minutes=10), shard, rooms, task_try)
        return ClaimFilter(**{"destination": "orders", "in_order": turns} | wanted), terms

    def announce(self, claimed: Slice, last: int) -> None:
        """Raise the high-water mark."""
        windows.raise_mark(self.ledger, self.lease, claimed.slice_id, last, self.now)

    def announce_alongside(self, claimed: Slice, last: int) -> None:
        """The same alongside other transactions of the route."""
        windows.raise_mark(self.ledger, self.lease, claimed.slice_id, last, self.now, alongside=True)

    def mark(self, claimed: Slice, marks: Sequence[Mark], tries: int = 3) -> None:
        """Mark the slice's only window."""
        windows.mark(
            self.ledger, self.lease, claimed.slice_id, marks, tries=tries, now=self.now, last_window=True,
            first_sends=not claimed.resends,
        )  # fmt: skip

    def send(self, plan: str = "requeue", status: str = "sent", **fields: Any) -> list[Mark]:
        """Send everything that is new or due; the marks."""
        self.make_due(plan)
        claimed = self.claim(100_000)
        assert claimed is not None
        marks = [Mark(m.message_id, m.attempt, status, f"sent-{m.message_id}", **fields) for m in claimed.messages]
        self.announce(claimed, marks[-1].message_id)
        self.mark(claimed, marks)
        return marks

    def redrive_id(self, message_id: int) -> str:
        return str(self.value("select redrive_id from messages where message_id = :id", id=message_id))


@contextmanager
def unchanged(plant: Plant) -> Iterator[None]:
    """Nothing in the ledger changes within the block."""
    before = _everything(plant)
    yield
    assert _everything(plant) == before


def _everything(plant: Plant) -> dict[str, list[tuple[Any, ...]]]:
    tables = (
        "runs", "route_state", "source_state", "staging_batches", "failure_groups", "group_aliases", "group_rulings",
        "messages", "repeat_copies", "returned_elsewhere", "delivery_slices", "redelivery_attempts", "breakers",
        "escalated_messages", "audit_events",
    )  # fmt: skip
    return {table: sorted(plant.rows(f"select * from {table}"), key=repr) for table in tables}
