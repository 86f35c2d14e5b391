"""Durable before recorded, recorded before settled: what a power cut may take is still at the broker."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.brokers.base import Settled
from redrive.brokers.memory import MemoryBroker
from redrive.stages import pipeline
from redrive.staging.batch_files import Staging
from tests.workshop import Workshop

DESCRIPTORS = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not DESCRIPTORS.exists(), reason="needs /proc to see what a descriptor stands for")


def _path_of(descriptor: int) -> Path:
    return (DESCRIPTORS / str(descriptor)).readlink()


class History:
    """What became durable and what was settled, in order, each with the state that others saw the batch in."""

    def __init__(self, workshop: Workshop) -> None:
        self.steps: list[tuple[str, str]] = []
        self._workshop = workshop

    def add(self, step: str) -> None:
        found = self._workshop.query("select state from staging_batches order by batch_id desc limit 1")
        self.steps.append((step, found[0][0] if found else ""))


class Settling(MemoryBroker):
    def __init__(self, workshop: Workshop, history: History) -> None:
        super().__init__(workshop.world)
        self._history = history

    def settle(self, queue: str, receipts: Any) -> Settled:
        self._history.add("settle")
        return super().settle(queue, receipts)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that were made durable, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        paths.append(str(_path_of(descriptor)))

    monkeypatch.setattr("redrive.staging.batch_writer.os.fsync", note)
    return paths


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, drain={"wait": "0s", "flush_messages": 2})
    yield workshop
    workshop.ledger.close()


def test_a_batch_is_durable_before_it_is_recorded_and_recorded_before_it_is_settled(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(workshop)
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = _path_of(descriptor)
        if path.suffix == ".parquet":
            assert path.read_bytes()[-4:] == b"PAR1", "it is finished"
        fsync(descriptor)
        history.add(f"fsync {path.suffix or 'folder'}")

    monkeypatch.setattr("redrive.staging.batch_writer.os.fsync", note)
    workshop.broker = Settling(workshop, history)
    workshop.die("a", "b", "c")
    pipeline.drain(workshop.settings, workshop.begin(), **workshop.options())

    of_a_batch = [("fsync .parquet", "open"), ("fsync folder", "open"), ("settle", "recorded")]
    assert list(dict.fromkeys(history.steps)) == of_a_batch
    kinds = [step for step, _ in history.steps]
    assert kinds.count("settle") == kinds.count("fsync .parquet") == 2
    second = kinds.index("settle") + 1
    for part in (kinds[:second], kinds[second:]):
        assert part == ["fsync .parquet", *["fsync folder"] * (len(part) - 2), "settle"]


def test_every_folder_that_leads_to_a_file_is_durable_with_it(tmp_path: Path, synced: list[str]) -> None:
    """A new folder is an entry of its parent: with that entry all in it is lost."""
    root = tmp_path / "var" / "staging"
    staging = Staging(str(root))
    for batch in (1, 2):
        path = staging.new_path("orders", "orders-dlq", batch, "l")
        writer = staging.writer(
            path, batch_id=batch, route="orders", source="orders-dlq", kind="dead_letter", broker=""
        )
        writer.close()
        lead = [root / path, root / "orders" / "orders-dlq", root / "orders", root]
        beyond = [tmp_path / "var", tmp_path] if batch == 1 else []
        assert synced == [str(one) for one in (*lead, *beyond)]
        synced.clear()
