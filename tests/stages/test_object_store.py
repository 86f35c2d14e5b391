"""Staging on an object store: the whole loop, Spark's workers among it, on a stand-in for Amazon S3.

Arrow's own S3 client is what is used in production too; the server is ministack, which the tests of SQS run on.
An Airflow connection says where that is and who may use it, or the environment does.
"""

import json
import uuid
from pathlib import Path

import boto3
import pytest

from redrive.connections import storage
from redrive.errors import StagingError
from redrive.spark import submit
from redrive.stages import pipeline
from redrive.staging import filesystems
from tests import workshop
from tests.servers import Ministack
from tests.workshop import REFUSED, Workshop

pytestmark = [pytest.mark.server, pytest.mark.spark]


#: What Arrow reads where no connection is named.
ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL")


class Bucket:
    """A fresh bucket."""

    def __init__(self, server: str) -> None:
        self.name = f"staging-{uuid.uuid4().hex[:12]}"
        self.uri = f"s3://{self.name}/redrive"
        self._client = boto3.client("s3", endpoint_url=server, region_name="us-east-1")
        self._client.create_bucket(Bucket=self.name)

    def objects(self) -> list[str]:
        """The names of all objects but those that stand for folders."""
        found = self._client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(one["Key"] for one in found if not one["Key"].endswith("/"))


@pytest.fixture
def bucket(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that Arrow finds by the environment, as it finds Amazon's."""
    for name, value in zip(ENVIRONMENT, ("test", "test", "us-east-1", ministack.url), strict=True):
        monkeypatch.setenv(name, value)
    return Bucket(ministack.url)


def test_a_cycle_by_a_connection_leaves_its_payloads_in_the_bucket_and_nothing_else(
    ministack: Ministack, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT:  # who doesn't ask the connection finds nothing
        monkeypatch.setenv(name, "http://127.0.0.1:9" if "URL" in name else "wrong")
    extra = {"region_name": "us-east-1", "endpoint_url": ministack.url}
    connection = {"conn_type": "aws", "login": "test", "password": "open-sesame", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    monkeypatch.setenv("REDRIVE_HOME", str(tmp_path))
    shop = Workshop(tmp_path)
    shop.settings = shop.settings.model_copy(update={"staging": bucket.uri, "staging_connection": "store"})
    monkeypatch.setattr(workshop, "classify", lambda manifest: submit.classify(shop.settings, manifest))
    shop.cycle_of_thirty()
    logs = [path.read_text() for path in (tmp_path / "var" / "spark" / "logs").iterdir()]
    assert logs
    assert not [log for log in logs if "open-sesame" in log]
    assert [key for key in bucket.objects() if not key.endswith(".parquet")] == []
    assert [key for key in bucket.objects() if "classified" in key] == [], "what Spark wrote is removed after the load"

    (first, *_) = bucket.objects()
    staging = storage.staging(shop.settings)
    whole = first.removeprefix("redrive/")
    assert staging.copies(whole) == 30
    staging.remove(whole)
    assert any(whole in problem for problem in shop.audit()), "the audit names what is gone"


def test_a_bucket_that_is_not_there_is_named_and_nothing_is_settled(bucket: Bucket, tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.settings = shop.settings.model_copy(update={"staging": "s3://no-such-bucket-at-all/redrive"})
    shop.die("a", error=REFUSED)
    run = shop.begin()
    with pytest.raises(StagingError, match="no-such-bucket-at-all"):
        pipeline.drain(shop.settings, run, **shop.options())
    shop.advance(minutes=10)
    assert shop.bodies("orders-dlq") == [b"a"]


def test_what_ends_within_leaves_nothing_at_its_place(bucket: Bucket) -> None:
    """Whatever ends the block closes the stream, and with it the upload is done."""
    filesystem, path = filesystems.locate(f"{bucket.uri}/f")

    def write(content: bytes, *, fail: bool) -> None:
        with filesystems.appearing_whole(filesystem, path) as sink:
            sink.write(content)
            if fail:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(b"half", fail=True)
    assert bucket.objects() == []
    write(b"whole", fail=False)
    with pytest.raises(ZeroDivisionError):
        write(b"half", fail=True)
    assert bucket.objects() == ["redrive/f"]
    with filesystem.open_input_file(path) as stream:
        assert stream.read() == b"whole"
