"""A package outside of this one adds a broker: an entry point is all that it takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.errors import SettingsError
from redrive.stages import pipeline
from tests.classifying import classify
from tests.workshop import Workshop

MODULE = """
from collections import deque
from datetime import timedelta

from redrive.brokers.base import UNKNOWN_DEPTH, BrokerKind, Capabilities, Publication, QueueInfo, Settled
from redrive.classification.causes import Cause
from redrive.message import DeadLetter, Received

CAPABILITIES = Capabilities(
    knows_empty=False, stable_identity=True, gives_reason=False, single_target=True, native_dedupe=None,
    native_delay=None, max_headers=None, max_message_bytes=None, publish_batch=1, failure_headers=frozenset(),
)
LOFTS = {"loft-dead": deque(), "loft": deque()}
LEASED = {}


class Pigeons:
    capabilities = CAPABILITIES

    @classmethod
    def open(cls, connection_id, **options):
        return cls()

    def capabilities_for(self, queue):
        return CAPABILITIES

    def receive(self, queue, *, limit, wait, lease):
        taken = [LOFTS[queue].popleft() for _ in range(min(limit, len(LOFTS[queue])))]
        LEASED.update({letter.broker_message_id: letter for letter in taken})
        return [Received(letter, letter.broker_message_id) for letter in taken]

    def settle(self, queue, receipts):
        return Settled(sum(LEASED.pop(receipt, None) is not None for receipt in receipts))

    def release(self, queue, receipts):
        LOFTS[queue].extend(LEASED.pop(receipt) for receipt in receipts)

    def extend(self, queue, receipts, lease):
        pass

    def publish(self, queue, messages):
        LOFTS[queue].extend(DeadLetter(f"sent-{m.message_id}", m.body, m.headers) for m in messages)
        return [Publication("sent") for _ in messages]

    def leads_to(self, queue, origin):
        return None

    def origins(self, queue):
        return None

    def depth(self, queue):
        return UNKNOWN_DEPTH

    def describe(self, queue):
        return QueueInfo(retention=timedelta(days=4))

    def close(self):
        pass


KIND = BrokerKind(
    title="Carrier pigeon",
    adapter="pigeon_post:Pigeons",
    capabilities=CAPABILITIES,
    advice={Cause.MAX_DELIVERIES: "On pigeons the number is that of the legs."},
    source_name=lambda queue, kind: f"{queue}-dead" if kind == "dead_letter" else queue,
    needs_connection=False,
)
"""


def install(folder: Path, package: str, entry_point: str) -> None:
    """What ``pip install`` leaves of a package: a folder of metadata beside its modules."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry_point}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which packages are found."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    registry.forget()
    yield folder
    monkeypatch.undo()
    registry.forget()


def test_a_route_drains_and_sends_with_it(site: Path, tmp_path: Path) -> None:
    (site / "pigeon_post.py").write_text(MODULE)
    install(site, "pigeon-post", "carrier_pigeon = pigeon_post:KIND")
    import pigeon_post  # type: ignore[import-not-found]  # noqa: PLC0415 - it is there from here on

    workshop = Workshop(
        tmp_path,
        broker="carrier_pigeon",
        connection=None,
        sources=[{"queue": "loft", "retention": "4d"}],
        destination={"queue": "loft"},
    )
    assert workshop.settings.routes["orders"].sources[0].queue == "loft-dead", "named as the broker does"
    letter = pigeon_post.DeadLetter("p-1", b"coo", enqueued_at=1_759_999_999_000_000)
    pigeon_post.LOFTS["loft-dead"].append(letter)
    common = {"clock": workshop.now}

    run = workshop.begin()
    drained = pipeline.drain(workshop.settings, run, **common)
    manifest = pipeline.prepare_classification(workshop.settings, run, **common)
    assert manifest is not None
    classify(manifest)
    loaded = pipeline.load(workshop.settings, run, **common)
    pipeline.plan(workshop.settings, run, **common)
    pipeline.deliver(workshop.settings, run, **common)

    assert (drained["drained"], loaded["new"]) == (1, 1)
    assert [sent.body for sent in pigeon_post.LOFTS["loft"]] == [b"coo"]
    assert registry.advice(Cause.MAX_DELIVERIES, "carrier_pigeon").endswith("that of the legs.")
    assert workshop.audit() == []


def test_one_that_can_not_be_loaded_is_told_with_its_package(site: Path) -> None:
    install(site, "broken-post", "carrier_pigeon = nobody_wrote_this:KIND")
    with pytest.raises(SettingsError, match=r"carrier_pigeon.*broken-post.*nobody_wrote_this"):
        registry.kind("carrier_pigeon")


def test_one_that_is_something_else_is_told_with_its_package(site: Path) -> None:
    install(site, "odd-post", "carrier_pigeon = json:dumps")
    with pytest.raises(SettingsError, match=r"odd-post is no BrokerKind: json:dumps"):
        registry.kind("carrier_pigeon")


def test_a_name_that_two_packages_offer_is_nobodys(site: Path) -> None:
    install(site, "other-post", "memory = other:KIND")
    with pytest.raises(SettingsError, match=r"'memory' is offered by other-post and redrive"):
        registry.kind("memory")
    assert registry.kind("amazon_sqs").title == "SQS", "others are as they were"
