"""What a run read and wrote, as OpenLineage's provider finds it."""

from types import SimpleNamespace
from typing import Any

import pytest

from redrive.settings import Settings

pytestmark = pytest.mark.airflow

ROUTE: dict[str, Any] = {
    "broker": "amazon_sqs",
    "connection": "sqs",
    "sources": [{"queue": "orders-dlq"}, {"queue": "https://odd/dlq", "destination": "odd"}],
    "destination": {"queue": "orders"},
}
SETTINGS = Settings.model_validate({"staging": "s3://bucket/staging", "routes": {"orders": ROUTE}})
DLQ, ODD = "redrive://queue/amazon_sqs/sqs/orders-dlq", "redrive://queue/amazon_sqs/sqs/https%3A%2F%2Fodd%2Fdlq"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What Airflow's own collector has, with a task under way that nobody started."""
    from airflow import sdk  # noqa: PLC0415
    from airflow.sdk.lineage import HookLineageCollector  # noqa: PLC0415

    from redrive.airflow import compat, lineage  # noqa: PLC0415

    collector = HookLineageCollector()
    monkeypatch.setattr(compat, "lineage_collector", lambda: collector)
    monkeypatch.setattr(sdk, "get_current_context", lambda: {"ti": SimpleNamespace(task_id="drain")})

    def tell(stage: str, counts: dict[str, int]) -> tuple[list[str], list[str]]:
        lineage.emit(SETTINGS, "orders", stage, counts)
        found = collector.collected_assets
        return [one.asset.uri for one in found.inputs], [one.asset.uri for one in found.outputs]

    return tell


def test_a_drain_reads_queues_and_writes_staging(told: Any) -> None:
    assert told("drain", {"drained": 3}) == ([DLQ, ODD], ["s3://bucket/staging"])


def test_a_delivery_reads_staging_and_writes_queues(told: Any) -> None:
    queues = ["redrive://queue/amazon_sqs/sqs/odd", "redrive://queue/amazon_sqs/sqs/orders"]
    assert told("deliver", {"redelivered": 1}) == (["s3://bucket/staging"], queues)


def test_what_moved_nothing_says_nothing(told: Any) -> None:
    for stage, counts in {"drain": {"drained": 0}, "deliver": {"redelivered": 0}, "plan": {"waiting": 1}}.items():
        assert told(stage, counts) == ([], [])


def test_the_provider_says_our_queues_in_the_words_of_openlineage(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.common.compat.openlineage import facet  # noqa: PLC0415
    from airflow.providers_manager import ProvidersManager  # noqa: PLC0415
    from airflow.sdk import Asset  # noqa: PLC0415

    from redrive.airflow import lineage, provider  # noqa: PLC0415

    monkeypatch.setattr(facet, "Dataset", SimpleNamespace)  # its client is not among our requirements
    (ours,) = provider.get_provider_info()["asset-uris"]
    assert ours["to_openlineage_converter"] == f"{lineage.__name__}.{lineage.to_openlineage.__name__}"
    for uri, said in {DLQ: ("amazon_sqs://sqs", "orders-dlq"), ODD: ("amazon_sqs://sqs", "https://odd/dlq")}.items():
        dataset = lineage.to_openlineage(Asset(uri), None)
        assert (dataset.namespace, dataset.name) == said
    assert ProvidersManager().asset_to_openlineage_converters.keys() >= {"redrive"}
