"""What a run says in the log: batches, jobs, slices and stages, with counts and seconds, and no payload."""

import logging
from pathlib import Path

import pytest

from tests import classifying, workshop
from tests.workshop import REFUSED, Workshop


def test_every_batch_job_slice_and_stage_has_a_line_without_a_payload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Workshop(tmp_path)
    shop.die("the secret of a", "the secret of b", error=REFUSED)
    with caplog.at_level(logging.INFO, logger="redrive"):
        shop.cycle()
    shop.ledger.close()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("redrive")]
    for beginning in (
        "batch 1 of orders-dlq: 2 copies, ",
        "classifying 2 copies in 1 batches; 0 wait for the next runs",
        "slice 1 to orders: 2 messages: 2 sent; in ",
        *(
            f"{stage} of route orders, run "
            for stage in ("observe", "drain", "load", "resolve", "plan", "deliver", "escalate")
        ),
    ):
        assert sum(line.startswith(beginning) for line in lines) == 1, beginning
    assert "redelivered 2" in next(line for line in lines if line.startswith("deliver of"))
    assert not [line for line in lines if "secret" in line]


def test_a_run_tells_how_long_it_waited_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(tmp_path)

    def slow(manifest: str) -> None:
        shop.advance(seconds=90)
        classifying.classify(manifest)

    monkeypatch.setattr(workshop, "classify", slow)
    shop.die("a")
    assert shop.cycle()["seconds"]["classify"] == 90
    assert "classify" not in shop.cycle()["seconds"], "nothing was asked"
    shop.ledger.close()
