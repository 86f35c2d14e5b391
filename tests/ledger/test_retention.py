"""What is finished and old is forgotten, and what is left still adds up."""

import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from redrive.cli.app import app
from redrive.errors import BrokerError, QueuesFailed, StagingError, UsageError
from redrive.ledger import moves
from redrive.ledger.account import balance, inspecting, retention
from redrive.ledger.delivery import outcomes
from redrive.ledger.engine import sql
from redrive.stages import pipeline
from redrive.staging.batch_files import Staging
from tests.ledger.planting import Plant, entering
from tests.ledger.test_loading import coming_back
from tests.workshop import KEY_ERROR, REFUSED, Workshop

DAY = timedelta(days=1)


def terms(plant: Plant, after: timedelta = 40 * DAY) -> dict[str, datetime]:
    """Those of a route that keeps for 30 days, when so much time has passed."""
    now = plant.now + after
    return {"before": now - 30 * DAY, "doubted_before": now - 60 * DAY, "now": now}


def forget(plant: Plant, after: timedelta = 40 * DAY) -> tuple[int, int]:
    gone, messages = retention.forget(plant.ledger, "orders", **terms(plant, after))
    for _ in range(2):  # with the row that still names the file, and without
        with plant.ledger.read() as connection:
            assert balance.problems(connection, thorough=True) == []
            left = retention.forgotten(connection)
        assert len(left) in (len(gone), 0)
        retention.drop(plant.ledger, [batch.batch_id for batch in left])
    return len(gone), messages


def count_anew(plant: Plant) -> None:
    with plant.ledger.write() as connection:
        moves.count_anew(connection)


def finish(plant: Plant, state: str = "presumed") -> None:
    plant.change(f"update messages set {entering(state)}")
    count_anew(plant)


def test_a_batch_of_which_everything_is_finished_and_old_is_forgotten(plant: Plant) -> None:
    plant.messages(3, fields='{"attribute:tenant": "blue"}')
    assert plant.rows("select count(*) from message_fields where value = 'blue'") == [(3,)]
    plant.send()
    finish(plant)
    assert forget(plant) == (1, 3)
    for table in ("messages", "message_fields", "redelivery_attempts", "staging_batches"):
        assert plant.rows(f"select * from {table}") == []
    assert plant.rows("select count from audit_events where action = 'forget'") == [(3,)]


def test_what_was_sent_and_nobody_will_see_keeps_no_batch(plant: Plant) -> None:
    """Nor is it kept itself; while it is watched it is."""
    plant.messages(3)
    plant.send()
    finish(plant)
    plant.change(f"update messages set {entering('sent')} where message_id % 1048576 = 0")
    count_anew(plant)
    assert forget(plant) == (0, 0)
    with plant.ledger.under(plant.lease, plant.now) as tx:
        assert outcomes.lose_sight(tx, until_fence=plant.lease.fence, reason="why") == 1
    assert forget(plant, 20 * DAY) == (0, 0)
    assert forget(plant) == (1, 3)
    for table in ("messages", "redelivery_attempts", "staging_batches"):
        assert plant.rows(f"select * from {table}") == []
    assert plant.rows("select state, messages from finished_counts where messages <> 0") == []


def test_of_a_copy_whose_message_is_forgotten_it_is_told_what_it_was(
    plant: Plant, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch stays for the sake of another message."""
    (one,) = plant.messages(1)
    plant.send()
    plant.load(coming_back(plant, one, broker_message_id="came-back"), {"body": b"another"})
    finish(plant)
    plant.change("update messages set copy_id = message_id")  # what came back later is forgotten already
    plant.change(f"update messages set {entering('held')} where message_id <> :one", one=one)
    count_anew(plant)
    assert forget(plant) == (1, 1)
    with plant.ledger.read() as connection:
        assert inspecting.trace(connection, "came-back") == []
        (left,) = inspecting.forgotten(connection, "came-back")
        assert inspecting.forgotten(connection, "b-2-1") == []
        assert [life["message"]["state"] for life in inspecting.trace(connection, "b-2-1")] == ["held"]
    assert (left["message_id"], left["kind"], left["source"]) == (one, "returned", "orders-dlq")
    route = {"broker": "memory", "connection": "m", "sources": [{"queue": "a"}], "destination": {"queue": "b"}}
    (tmp_path / "redrive.yaml").write_text(
        yaml.safe_dump({"database": ledger_url, "staging": str(tmp_path), "routes": {"orders": route}})
    )
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "redrive.yaml"))
    with pytest.raises(UsageError, match=f"'came-back' is a returned copy of message {one} of route orders, seen in"):
        CliRunner().invoke(app, ["trace", "came-back"], catch_exceptions=False)


def test_what_is_not_old_enough_stays(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    finish(plant)
    assert forget(plant, 29 * DAY) == (0, 0)


@pytest.mark.parametrize(
    "state", ["classified", "waiting", "held", "sending", "sent", "unknown", "returned", "expired"]
)
def test_one_unfinished_message_keeps_its_batch(plant: Plant, state: str) -> None:
    first, _ = plant.messages(2)
    plant.send()
    finish(plant)
    plant.change(f"update messages set {entering(state)} where message_id = :id", id=first)
    count_anew(plant)
    plant.change("update delivery_slices set closed_at = null")
    assert forget(plant) == (0, 0)


def test_a_batch_that_holds_the_newest_copy_of_a_message_stays(plant: Plant) -> None:
    """Its payload shows how the message failed last."""
    (one,) = plant.messages(1)
    plant.send()
    plant.load({"redrive_id": plant.redrive_id(one), "redrive_attempt": 1, "body": b"body 0"})
    assert forget(plant) == (0, 0)


def test_batches_of_duplicates_only_go(plant: Plant) -> None:
    again = {"broker_message_id": "same", "body": b"a"}
    plant.load(again)
    plant.load(again)
    assert forget(plant) == (1, 0)
    assert plant.states() == {"classified": 1}


def test_a_batch_id_is_never_given_twice(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    finish(plant)
    newest = plant.value("select max(batch_id) from staging_batches")
    forget(plant)
    assert plant.batch(1) > newest


def test_forgetting_waits_for_a_run_that_takes_a_message_back(plant: Plant) -> None:
    """A return is being loaded while retention looks at the same message: one of them is first, nothing is lost."""
    (one,) = plant.messages(1)
    plant.send()
    finish(plant)
    looked = threading.Event()
    forgotten: list[tuple[int, int]] = []

    def forget_meanwhile() -> None:
        looked.set()
        gone, messages = retention.forget(plant.ledger, "orders", **terms(plant))
        forgotten.append((len(gone), messages))

    thread = threading.Thread(target=forget_meanwhile)
    with plant.ledger.under(plant.lease, plant.now) as tx:
        thread.start()
        looked.wait()
        thread.join(0.3)
        tx.execute(
            sql("update messages set state = 'classified', plan = null, changed_at = :later_at"),
            {"later_at": plant.now + 40 * DAY},
        )
    thread.join()
    assert forgotten == [(0, 0)]
    assert plant.rows("select message_id, state from messages") == [(one, "classified")]
    assert len(plant.rows("select * from redelivery_attempts")) == 1


def test_of_two_that_forget_at_once_one_tells_it(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule's audit and a person's: the second has found the same batch before the first has forgotten it."""
    plant.messages(3)
    plant.send()
    finish(plant)
    when = terms(plant)
    told: list[tuple[int, int]] = []
    by = plant.ledger.by

    def late(*given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        gone, messages = retention.forget(plant.ledger, "orders", **when)
        told.append((len(gone), messages))
        return by(*given, **how)

    monkeypatch.setattr(plant.ledger, "by", late)
    gone, messages = retention.forget(plant.ledger, "orders", **when)
    assert (told, len(gone), messages) == ([(1, 3)], 0, 0)
    assert plant.rows("select count from audit_events where action = 'forget'") == [(3,)]


#: As if no answer had come when its copies were settled, in a run that has ended.
UNANSWERED = "update staging_batches set state = 'recorded', settled_copies = 0, settled_at = null"


def test_a_batch_of_which_copies_may_come_again_stays_until_its_source_was_drained(plant: Plant) -> None:
    plant.messages(3)
    plant.send()
    finish(plant)
    plant.change(UNANSWERED)
    plant.change("update runs set finished_at = :at", at=plant.now)
    assert forget(plant) == (0, 0), "it was never drained to its end"
    drained = "insert into source_state (route, source, drained_to) values ('orders', 'orders-dlq', :at)"
    plant.change(drained, at=plant.now + timedelta(hours=11))
    assert forget(plant) == (0, 0), "some may have been leased when it was"
    plant.change("update source_state set drained_to = :at", at=plant.now + timedelta(hours=13))
    assert forget(plant) == (1, 3)


def test_a_source_that_is_never_drained_again_keeps_a_batch_twice_as_long_and_not_for_ever(plant: Plant) -> None:
    """Its queue left the configuration, or is never empty."""
    plant.messages(3)
    plant.send()
    finish(plant)
    plant.change(UNANSWERED)
    assert forget(plant, 59 * DAY) == (0, 0)
    assert forget(plant, 61 * DAY) == (1, 3)


def test_a_batch_that_turns_out_to_be_in_doubt_meanwhile_stays(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source left the configuration between the look and the change, and with it what was known of it."""
    plant.messages(3)
    plant.send()
    finish(plant)
    by = plant.ledger.by

    def late(*given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        plant.change(UNANSWERED)
        return by(*given, **how)

    monkeypatch.setattr(plant.ledger, "by", late)
    assert forget(plant) == (0, 0)
    assert plant.states() == {"presumed": 3}


def test_what_comes_again_after_a_pause_is_still_known(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a settle was lost, and people discarded the messages: they are not asked about them anew."""

    def lost(*_: Any) -> None:
        raise BrokerError("connection reset")

    workshop.die("a", "b", error=KEY_ERROR)
    monkeypatch.setattr(workshop.broker, "settle", lost)
    run = workshop.begin()
    with pytest.raises(QueuesFailed, match="2 of 2 copies of batch 1 are staged but not settled"):
        list(workshop.stages(run))
    pipeline.finish(workshop.settings, run, "failed", workshop.now)
    monkeypatch.undo()
    workshop.change("update escalated_messages set decision = 'discard', decided_by = 'ana', note = 'done by hand'")
    workshop.review()
    assert workshop.states() == {"discarded": 2}
    workshop.advance(days=31)
    assert pipeline.retention(workshop.settings, workshop.now()) == {"batches": 0, "messages": 0}
    assert len(workshop.bodies("orders-dlq")) == 2
    workshop.cycle()
    assert workshop.states() == {"discarded": 2}
    assert workshop.bodies("orders-dlq") == []
    workshop.advance(days=31)
    assert pipeline.retention(workshop.settings, workshop.now()) == {"batches": 2, "messages": 2}
    assert workshop.audit() == []


def presumed(workshop: Workshop, *bodies: str) -> None:
    """Each in a file of its own, and long ago."""
    for body in bodies:
        workshop.die(body, error=REFUSED)
        workshop.cycle()
        workshop.consume()
        workshop.advance(hours=1)
    workshop.cycle()
    workshop.advance(hours=1)
    workshop.cycle()
    assert workshop.states() == {"presumed": len(bodies)}
    workshop.advance(days=31)


def test_files_go_with_their_rows(workshop: Workshop) -> None:
    presumed(workshop, "a")
    assert pipeline.retention(workshop.settings, workshop.now()) == {"batches": 1, "messages": 1}
    assert not list((workshop.folder / "staging").rglob("*.parquet"))
    assert workshop.audit() == []


def test_a_route_about_which_the_audit_complains_keeps_it_longer_and_not_for_ever(workshop: Workshop) -> None:
    presumed(workshop, "a")
    assert pipeline.retention(workshop.settings, workshop.now(), longer=["orders"]) == {"batches": 0, "messages": 0}
    workshop.advance(days=30)
    assert pipeline.retention(workshop.settings, workshop.now(), longer=["orders"]) == {"batches": 1, "messages": 1}


def test_a_file_that_can_not_be_removed_keeps_no_other(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    presumed(workshop, "a", "b", "c")
    ((stays,),) = workshop.query("select min(uri) from staging_batches")
    remove = Staging.remove

    def refusing(staging: Staging, uri: str) -> None:
        if uri == stays:
            raise StagingError(f"{uri}: access denied")
        remove(staging, uri)

    monkeypatch.setattr(Staging, "remove", refusing)
    with pytest.raises(StagingError, match="access denied"):
        pipeline.retention(workshop.settings, workshop.now())
    assert workshop.query("select uri from staging_batches") == [(stays,)], "so that the next one tries it again"
    monkeypatch.undo()
    pipeline.retention(workshop.settings, workshop.now())
    assert not list((workshop.folder / "staging").rglob("*.parquet"))
