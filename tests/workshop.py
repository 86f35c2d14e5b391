"""A whole Redrive for tests: a broker in memory, a ledger, staging, a clock that moves when told, and a consumer."""

import copy
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from redrive.brokers.memory import ManualClock, MemoryBroker, MemoryWorld
from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.message import DeadLetter, Header, Micros, Outgoing
from redrive.settings import Settings, parse
from redrive.stages import pipeline
from redrive.stages.context import Run
from tests import blank
from tests.classifying import classify
from tests.probe import Probe

QUEUES = ("orders", "orders-dlq", "orders-delay")

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
KEY_ERROR = "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku'"
THROTTLED = "HTTP Error 429: Too Many Requests"

#: A processed check: its connection is the test's to make.
CHECK = {
    "connection": "orders_db",
    "query": "select id from processed where id in :keys",
    "key": "attribute:message_id",
    "settle_after": "0s",
}
ROUTE: dict[str, Any] = {
    "broker": "memory",
    "connection": "memory",
    "sources": [
        {"queue": "orders-dlq", "kind": "dead_letter", "lease": "2s", "max_deliveries": 3},
        {"queue": "orders-delay", "kind": "delay", "delay": "30s", "destination": "orders"},
    ],
    "destination": {"queue": "orders"},
    "canary": "off",
    "backoff": {"first": "1m", "factor": 2, "max": "1h"},
    "drain": {"wait": "0s"},
    "evidence": ["attribute:error"],
}


class Workshop(Probe):
    """Runs the stages of one route, ``orders``, against queues ``orders``, ``orders-dlq`` and ``orders-delay``."""

    capabilities = MEMORY_CAPABILITIES  # of its broker

    def __init__(self, folder: Path, database: str | None = None, **route: Any) -> None:
        self.folder = folder
        self.open_queues(1_760_000_000_000_000)
        self.settings = self.configure(database or f"sqlite:///{folder}/redrive.db", **route)
        self.ledger = Ledger(self.settings.database)
        blank.upgrade(self.ledger, self.now())

    def open_queues(self, now: int) -> None:
        """A broker of its own, whose queues are empty."""
        self.time = ManualClock(now)
        self.world = MemoryWorld(clock=self.time, patience=timedelta(0), capabilities=self.capabilities)
        for queue in ("orders-dlq", "orders-delay"):
            self.world.create(queue, lease=timedelta(minutes=5))
        self.world.create("orders", lease=timedelta(minutes=5), dead_letter_queue="orders-dlq")
        self.broker = MemoryBroker(self.world)

    def configure(self, database: str, **route: Any) -> Settings:
        """The settings of a workshop with these changes to its route."""
        text = yaml.safe_dump(
            {"database": database, "staging": str(self.folder / "staging"), "routes": {"orders": ROUTE | route}}
        )
        return parse(text, env=os.environ, root=self.folder)

    def now(self) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.time.now)

    def advance(self, **delta: float) -> None:
        """Let time pass."""
        self.time.advance(timedelta(**delta))

    # --- messages ---------------------------------------------------------------------------------------

    def die(self, *bodies: str | bytes, error: str | None = REFUSED, queue: str = "orders-dlq", **fields: Any) -> None:
        """Put dead letters into the DLQ, as a consumer does that leaves its error in an attribute."""
        for body in bodies:
            raw = body.encode() if isinstance(body, str) else body
            headers = [Header("message_id", "String", raw[:40].decode("utf-8", "replace"))]
            if error is not None:
                headers.append(Header("error", "String", error))
            self.world.put(queue, DeadLetter("", raw, tuple(headers), **({"origin": "orders"} | fields)))

    def consume(self, verdict: Callable[[DeadLetter], str | None] = lambda _: None, queue: str = "orders") -> int:
        """Work off ``queue``; ``verdict`` gives an error for what fails again (it goes to the DLQ with all headers).

        Returns how many messages were taken.
        """
        taken = 0
        while received := self.broker.receive(queue, limit=1000, wait=timedelta(0), lease=timedelta(minutes=1)):
            taken += len(received)
            for letter, _ in received:
                error = verdict(letter)
                if error is not None:
                    kept = tuple(h for h in letter.headers if h.name != "error")
                    self.world.put(
                        "orders-dlq",
                        DeadLetter("", letter.body, (*kept, Header("error", "String", error)), origin="orders"),
                    )
            self.broker.settle(queue, [receipt for _, receipt in received])
        return taken

    def bodies(self, queue: str) -> list[bytes]:
        """What lies visible in a queue."""
        return [letter.body for letter in self.world.peek(queue)]

    # --- runs -------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        return {"clock": self.now, "broker": self.broker}

    def begin(self, **options: Any) -> Run:
        return pipeline.begin(self.settings, "orders", trigger="test", holder="test", clock=self.now, **options)

    def stages(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        """Run stage after stage, each with its counts."""
        common = self.options()
        yield "observe", pipeline.observe(self.settings, run, **common)
        yield "drain", self.drain(run)
        manifest = pipeline.prepare_classification(self.settings, run, **common)
        if manifest is not None:
            classify(manifest)
        yield "load", pipeline.load(self.settings, run, **common)
        yield "resolve", pipeline.resolve(self.settings, run, **common)
        yield "plan", pipeline.plan(self.settings, run, **common)
        yield "deliver", self.deliver(run)
        yield "escalate", pipeline.escalate(self.settings, run, **common)
        yield "report", pipeline.report(self.settings, run, **common)

    def planned(self, **options: Any) -> Run:
        """A run that is about to deliver."""
        run = self.begin(**options)
        for name, _ in self.stages(run):
            if name == "plan":
                return run
        raise AssertionError("no stage is called plan")

    def drain(self, run: Run) -> dict[str, Any]:
        return pipeline.drain(self.settings, run, **self.options())

    def deliver(self, run: Run) -> dict[str, Any]:
        return pipeline.deliver(self.settings, run, **self.options())

    def cycle(self, selection: Selection | None = None) -> dict[str, Any]:
        """One whole run; its report. Fails if the route does not add up."""
        run = self.begin(selection=selection)
        report: dict[str, Any] = {}
        for _, counts in self.stages(run):
            report = counts
        pipeline.finish(self.settings, run, "succeeded", self.now)
        return report

    def cycle_of_thirty(self) -> None:
        """A cycle over thirty messages, of which ten are for a person; fails if one goes elsewhere."""
        self.die(*(f'{{"order": {number}}}' for number in range(20)), error=REFUSED)
        self.die(*(f'{{"order": {number}}}' for number in range(20, 30)), error=KEY_ERROR)
        report = self.cycle()
        assert (report["new"], report["redelivered"], report["escalated"]) == (30, 20, 10)
        assert self.audit() == []

    def review(self) -> dict[str, Any]:
        return pipeline.apply_decisions(self.settings, "orders", clock=self.now)

    # --- looking ----------------------------------------------------------------------------------------

    def audit(self) -> list[str]:
        """What the audit finds wrong."""
        return pipeline.audit(self.settings, now=self.now())["problems"]


class Pipelining(Workshop):
    """Whose broker can have several windows on the wire."""

    capabilities = replace(MEMORY_CAPABILITIES, pipelines=True)


class Template:
    """A workshop in which much has happened: :meth:`start` gives any number of workshops in exactly that state.

    Nothing in it may be leased, and nothing on its way; it is used up by this.
    """

    def __init__(self, shop: Workshop, **route: Any) -> None:
        self._shop = shop
        self._route = route
        self._queues = {queue: shop.world.peek(queue) for queue in QUEUES}
        self._sequence = next(shop.world.sequence)
        shop.ledger.close()

    def start(self, folder: Path, database: str | None = None) -> Workshop:
        """A workshop of its own in this state; on PostgreSQL ``database`` is a copy of the template's."""
        shutil.copytree(self._shop.folder, folder, dirs_exist_ok=True)
        shop = copy.copy(self._shop)
        shop.folder = folder
        shop.open_queues(self._shop.time.now)
        shop.world.sequence = itertools.count(self._sequence)  # no id is given twice
        for queue, letters in self._queues.items():
            shop.world.put(queue, *letters)
        shop.settings = shop.configure(database or f"sqlite:///{folder}/redrive.db", **self._route)
        shop.ledger = Ledger(shop.settings.database)
        shop.states()  # opens the ledger, for as long as the workshop is in use
        return shop


def outgoing(number: int, body: bytes = b"{}") -> Outgoing:
    """A message to publish where only its being one matters."""
    return Outgoing(number, f"r-{number}", 1, body)


def micros(moment: datetime) -> Micros:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
