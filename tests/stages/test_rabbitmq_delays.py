"""Delays that a real RabbitMQ keeps: a message comes when it is due, without another run, and is known if it fails."""

from pathlib import Path

import pytest

from redrive.ledger.engine import parse_instant
from tests import servers
from tests.contract.broker_contract import eventually
from tests.stages.test_rabbitmq_loop import RabbitWorkshop

pytestmark = pytest.mark.server


def test_the_broker_brings_what_is_due_without_another_run(tmp_path: Path, rabbitmq: servers.RabbitMQ) -> None:
    workshop = RabbitWorkshop(
        tmp_path,
        rabbitmq,
        causes={"unclassified": {"verdict": "delay"}},
        backoff={"first": "3s", "factor": 1, "max": "3s", "native": True},
    )
    orders = [f"order {number}" for number in range(6)]
    workshop.fail(*orders)
    assert workshop.cycle()["redelivered"] == 6, "nothing waits in the ledger"
    kept = [parse_instant(row[0]) for row in workshop.query("select due_at from redelivery_attempts")]
    assert any(kept), "some had to wait"
    done: list[str] = []

    def all_done() -> bool:
        done.extend(workshop.work(fails=lambda order: order == "order 5"))
        return len(done) == 5 and workshop.depth(workshop.dlq) == 1

    assert eventually(all_done, within=60)
    assert workshop.now() >= max(moment for moment in kept if moment is not None) or None in kept
    [letter] = workshop.letters(workshop.dlq)
    assert (letter.origin, letter.reason) == (workshop.orders, "rejected"), "and not the queue where it waited"
    report = workshop.cycle()
    assert (report["new"], report["returned"]) == (0, 1)
    assert workshop.audit() == []
    workshop.close()
