"""What the audit sees beyond sums. The product no longer makes these traces, so they are planted."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive.ledger import leases
from redrive.ledger.engine import sql
from redrive.ledger.transactions import RouteLease
from redrive.stages import audit, pipeline
from tests.workshop import KEY_ERROR, REFUSED, Workshop


def live(workshop: Workshop) -> None:
    """Sent, returned, escalated, a duplicate of a first copy and one of a return; nothing is wrong."""
    workshop.die("a", "b", "c", error=REFUSED)
    workshop.die("d", error=KEY_ERROR)
    first = workshop.world.peek("orders-dlq")[1]
    workshop.cycle()
    workshop.consume(lambda letter: REFUSED if letter.body == b"a" else None)
    again = workshop.world.peek("orders-dlq")[0]
    workshop.world.put("orders-dlq", first)
    workshop.world.put("orders-dlq", again)
    workshop.cycle()
    assert problems(workshop) == []


@pytest.fixture
def lived(workshop_after: Callable[..., Workshop]) -> Workshop:
    """A ledger in which nothing is wrong."""
    return workshop_after(live)


def problems(workshop: Workshop) -> list[str]:
    found = audit.audit(workshop.settings, now=workshop.now(), brokers=lambda _: workshop.broker)
    return [str(problem) for problem in found.problems]


def change(workshop: Workshop, statement: str, **values: Any) -> None:
    with workshop.ledger.write() as connection:
        assert connection.execute(sql(statement), values).rowcount >= 1, "the evidence has to be real"


def rewrite(workshop: Workshop, batch_id: int, column: str, row: int, value: Any) -> None:
    """Change one value of a staging file."""
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = :id", id=batch_id)
    path = Path(workshop.settings.staging) / str(uri)
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    values[row] = value
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), path)


def row_of(workshop: Workshop, kind: str) -> int:
    ((copy_id,),) = workshop.query("select min(copy_id) from repeat_copies where kind = :kind", kind=kind)
    return int(copy_id) & 0xFFFFF


def _unloaded(workshop: Workshop) -> None:
    run = workshop.begin()
    workshop.die("e")
    workshop.drain(run)
    for _ in range(3):
        workshop.advance(minutes=10)
        run = workshop.begin()
        audit_after = run
    change(workshop, "update runs set finished_at = :now, status = 'failed' where finished_at is null",
           now=workshop.now())  # fmt: skip
    assert audit_after is run


def _sending(workshop: Workshop) -> None:
    workshop.advance(minutes=5)
    claimed = workshop.now()
    change(workshop, "update messages set state = 'sending' where state = 'sent'")
    change(workshop, "update delivery_slices set closed_at = null, deadline_at = :now where slice_id in"
           " (select slice_id from redelivery_attempts a inner join messages m on m.message_id = a.message_id"
           " and m.attempts = a.attempt where m.state = 'sending')", now=claimed)  # fmt: skip
    workshop.advance(hours=2)


def _sent_long_ago(workshop: Workshop) -> None:
    assert workshop.states()["sent"]
    workshop.advance(days=4)


def _unknown(workshop: Workshop) -> None:
    change(workshop, "update messages set state = 'unknown' where state = 'sent'")
    change(workshop, "update redelivery_attempts set unknown_at = sent_at, sent_at = null where outcome is null")
    workshop.advance(days=2)


def _no_payload(workshop: Workshop) -> None:
    change(workshop, "update escalated_messages set payload = null, payload_bytes = null")


def _one_id_for_two_sends(workshop: Workshop) -> None:
    change(workshop, "update redelivery_attempts set broker_message_id = 'm-1'")


def _looked_too_soon(workshop: Workshop) -> None:
    change(
        workshop, "update delivery_slices set observed_from = last_sent_at, observed_at = last_sent_at where sent > 0"
    )
    change(workshop, "update queue_observations set observed_at = (select min(last_sent_at) from delivery_slices),"
           " lag_seconds = 60 where role = 'destination'")  # fmt: skip


def _lost_from_sight(workshop: Workshop) -> None:
    change(workshop, "update messages set reason = 'It was being put back into its queue orders-dlq and may be there"
           " already' where state = 'escalated'")  # fmt: skip


def _restored_and_unknown(workshop: Workshop) -> None:
    one = "(select min(message_id) from messages where state = 'sent')"
    change(workshop, "update redelivery_attempts set unknown_at = sent_at, sent_at = null"
           f" where message_id = {one} and outcome is null")  # fmt: skip
    change(
        workshop,
        "update messages set state = 'discarded', plan = null, reason = 'It was restored to orders-dlq.'"
        f" where message_id = {one}",
    )


def _no_review_row(workshop: Workshop) -> None:
    """By an owner who may drop triggers; others are refused."""
    with workshop.ledger.write() as connection:
        if workshop.ledger.dialect.name == "sqlite":
            names = connection.execute(
                sql("select name from sqlite_master where type = 'trigger' and tbl_name = 'escalated_messages'")
            ).scalars()
            for name in list(names):
                connection.exec_driver_sql(f"drop trigger {name}")
        else:
            connection.exec_driver_sql("alter table escalated_messages disable trigger user")
    change(workshop, "delete from escalated_messages")


def _failed_elsewhere(workshop: Workshop) -> None:
    rewrite(workshop, 2, "origin", row_of(workshop, "returned"), "billing")


def _return_dropped(workshop: Workshop) -> None:
    """A return that was taken for the second staging of what it was before."""
    rewrite(workshop, 2, "redrive_id", 1, "k-00000000100001")
    rewrite(workshop, 2, "redrive_attempt", 1, 1)
    change(
        workshop, "update repeat_copies set attempt = 1 where kind = 'duplicate' and copy_id = :id", id=(2 << 20) + 1
    )


def _body_changed(workshop: Workshop) -> None:
    rewrite(workshop, 1, "body", 0, b"x")


def _hash_changed(workshop: Workshop) -> None:
    rewrite(workshop, 1, "body_hash", 0, b"0" * 16)


def _unknown_file(workshop: Workshop) -> None:
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = 1")
    path = Path(workshop.settings.staging) / str(uri)
    path.with_name(path.name.replace("000001", "000007")).write_bytes(path.read_bytes())


def _no_file(workshop: Workshop) -> None:
    ((uri,),) = workshop.query("select uri from staging_batches where batch_id = 1")
    (Path(workshop.settings.staging) / str(uri)).unlink()


FINDINGS: dict[str, tuple[Callable[[Workshop], None], str, str]] = {
    "unloaded for three runs": (_unloaded, "are not loaded although three runs ended", "`redrive classify orders`"),
    "sending after its delivery": (_sending, "in sending although their delivery is over", "`redrive run orders`"),
    "sent long ago": (_sent_long_ago, "nobody knows what became of them", "`redrive status orders`"),
    "unknown long ago": (_unknown, "unknown for more than a day", "`redrive status orders`"),
    "a review without payload": (_no_payload, "under review without a payload", "Bring the file back"),
    "one broker id for several sends": (_one_id_for_two_sends, "took them for one and dropped", "find the others"),
    "presumed too soon": (_looked_too_soon, "sooner after their last send than the broker tells", "Look into"),
    "a restore lost from sight": (_lost_from_sight, "may have been put back", "Look for them in the queue"),
    "restored though it may have arrived": (_restored_and_unknown, "may be in two places", "Ask the consumer"),
    "no review row": (_no_review_row, "escalated messages without an open review row", "`redrive escalate orders`"),
    "a return from elsewhere": (
        _failed_elsewhere,
        "failed at billing, while the attempt went to orders",
        "Send its body",
    ),
    "a return dropped as a duplicate": (_return_dropped, "it is a return that was overlooked", "Redeliver message"),
    "a body that changed": (_body_changed, "1 bodies are not what was staged", "Bring it back"),
    "a body that is not what was loaded": (_hash_changed, "not", "Bring it back"),
    "a file without a row": (_unknown_file, "that the ledger doesn't know", "`redrive adopt orders`"),
    "a row without a file": (_no_file, "batch 1 of route orders", "Bring it back"),
}


@pytest.mark.parametrize(("plant", "said", "to_do"), FINDINGS.values(), ids=FINDINGS.keys())
def test_the_audit_complains_and_says_what_to_do(
    lived: Workshop, plant: Callable[[Workshop], None], said: str, to_do: str
) -> None:
    plant(lived)
    found = problems(lived)
    assert any(said in problem and to_do in problem for problem in found), found


def test_what_waits_out_a_long_window_while_runs_go_well_is_no_finding(lived: Workshop) -> None:
    _unknown(lived)
    for days, complains in ((0, False), (14, True)):
        lived.advance(days=days)
        run = lived.begin()
        leases.note_counts(
            lived.ledger,
            RouteLease("orders", run.run_id, run.fence, timedelta(minutes=1)),
            "resolve",
            {"seconds": 1},
            lived.now(),
        )
        pipeline.finish(lived.settings, run, "succeeded", lived.now)
        assert any("unknown for more than a day" in problem for problem in problems(lived)) is complains


def test_bodies_of_finished_messages_are_not_read_anew(lived: Workshop) -> None:
    change(lived, "update messages set state = 'discarded', plan = null")
    _body_changed(lived)
    assert not any("bodies" in problem for problem in problems(lived))
