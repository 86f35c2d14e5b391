"""Staging by an Airflow connection: what an object store is told, and where it isn't told of."""

import json
import pickle
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.connections import lookup, storage
from redrive.errors import SettingsError
from redrive.settings import Settings, parse
from redrive.spark import submit
from redrive.staging import filesystems

SECRET = "hunter2/and+more"
AZURE = "abfs://payloads@acme.dfs.core.windows.net/redrive"
CONNECTIONS = {
    "s3://b/p": {"conn_type": "aws", "login": "AKIA", "password": SECRET, "extra": {"region_name": "eu-west-1"}},
    AZURE: {"conn_type": "wasb", "login": "acme", "password": SECRET},
}


def access(uri: str, connection: dict[str, Any]) -> filesystems.Access:
    return storage.access_by(lookup.parse("store", json.dumps(connection)), uri)


def settings_of(uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Settings:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(CONNECTIONS[uri]))
    return parse(f"staging: {uri}\nstaging_connection: store", env={}, root=tmp_path)


@pytest.mark.parametrize(
    ("uri", "connection", "options"),
    [
        pytest.param(
            "s3://b/p",
            {"conn_type": "aws", "login": "AKIA", "password": "s", "extra": {"aws_session_token": "t"}},
            {"access_key": "AKIA", "secret_key": "s", "session_token": "t"},
            id="s3-keys",
        ),
        pytest.param(
            "s3://b/p",
            {"conn_type": "aws", "extra": {"region_name": "eu-west-1", "endpoint_url": "http://minio:9000"}},
            {"region": "eu-west-1", "endpoint_override": "minio:9000", "scheme": "http"},
            id="s3-of-the-machine-elsewhere",
        ),
        pytest.param(
            "s3://b/p",
            {"conn_type": "aws", "extra": {"service_config": {"s3": {"endpoint_url": "https://s3.example"}}}},
            {"endpoint_override": "s3.example", "scheme": "https"},
            id="s3-endpoint-of-the-service",
        ),
        pytest.param(
            AZURE, CONNECTIONS[AZURE], {"account_name": "acme", "account_key": SECRET}, id="azure-account-key"
        ),
        pytest.param(
            AZURE,
            {"conn_type": "adls", "login": "app", "password": "s", "extra": {"tenant_id": "t"}},
            {"account_name": "acme", "tenant_id": "t", "client_id": "app", "client_secret": "s"},
            id="azure-service-principal",
        ),
        pytest.param(
            AZURE,
            {"conn_type": "wasb", "extra": {"sas_token": "sv=1"}},
            {"account_name": "acme", "sas_token": "sv=1"},
            id="azure-shared-access",
        ),
        pytest.param(
            AZURE,
            {"conn_type": "wasb", "extra": {"connection_string": "AccountName=acme;AccountKey=k==;X=y"}},
            {"account_name": "acme", "account_key": "k=="},
            id="azure-connection-string",
        ),
        pytest.param(
            "gs://b/p",
            {"conn_type": "google_cloud_platform", "extra": {"extra__google_cloud_platform__is_anonymous": True}},
            {"anonymous": True},
            id="google-anonymous",
        ),
        pytest.param(
            "gs://b/p",
            {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": "yes"}},
            {"anonymous": True},
            id="google-anonymous-in-a-uri",
        ),
    ],
)
def test_a_connection_says_what_arrow_takes(uri: str, connection: dict[str, Any], options: dict[str, Any]) -> None:
    found = access(uri, connection)
    assert found.options == options


def test_a_key_of_google_becomes_a_token_that_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    from google.oauth2 import service_account  # noqa: PLC0415

    ends = datetime(2030, 1, 1) + timedelta(seconds=1)  # noqa: DTZ001  google-auth's own are naive, in UTC
    made = SimpleNamespace(token="ya29", expiry=ends, refresh=lambda _request: None)
    asked: list[Any] = []

    def take(info: Any, scopes: Any) -> Any:
        asked.append((info, scopes))
        return made

    monkeypatch.setattr(service_account.Credentials, "from_service_account_info", take)
    key = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": '{"type": "service_account"}'}}
    found = access("gs://b/p", key)
    assert asked[0][0] == {"type": "service_account"}
    assert found.options == {"access_token": "ya29", "credential_token_expiration": ends}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(key))
    settings = Settings(staging="gs://b/p", staging_connection="store")
    assert storage.access_of_job("store", "gs://b/p", storage.for_job(settings)) == found


def test_who_says_in_a_uri_that_he_is_not_anonymous_is_not() -> None:
    connection = lookup.parse("store", "google-cloud-platform://?is_anonymous=false&keyfile_dict=%7B")
    with pytest.raises(SettingsError, match="no usable credentials"):
        storage.access_by(connection, "gs://b/p")


@pytest.mark.parametrize(
    ("uri", "connection", "said"),
    [
        pytest.param("/var/staging", CONNECTIONS["s3://b/p"], "for an object store, and staging is", id="a-folder"),
        pytest.param("gs://b/p", CONNECTIONS["s3://b/p"], "'aws', and gs:// needs google_cloud_platform", id="another"),
        pytest.param(
            "gs://b/p",
            {"conn_type": "gcs", "extra": {"keyfile_dict": "{" + SECRET}},
            "no usable credentials",
            id="no-json",
        ),
        pytest.param(
            "gs://b/p", {"conn_type": "gcs", "extra": {"key_secret_name": "n"}}, "key_secret_name is not read", id="key"
        ),
        *(
            pytest.param(
                "s3://b/p",
                {"conn_type": "aws", "extra": {"endpoint_url": endpoint}},
                "extra.endpoint_url is no address",
                id=endpoint,
            )
            for endpoint in ("http://h:99999", "https://[h", "h:9000")
        ),
    ],
)
def test_a_connection_that_does_not_fit_is_named_and_its_secrets_are_not(
    uri: str, connection: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        access(uri, connection)
    assert "store" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("uri", CONNECTIONS)
def test_the_job_is_told_an_id_and_finds_the_secret_in_its_environment(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    settings = settings_of(uri, monkeypatch, tmp_path)
    for runner in ("local", "submit"):
        spark = settings.spark.model_copy(update={"runner": runner})
        command = submit.submit_command(settings.model_copy(update={"spark": spark}), f"{uri}/m.json")
        assert command[-4:] == ["--manifest", f"{uri}/m.json", "--connection", "store"]
        assert SECRET not in " ".join(command)
    given = storage.for_job(settings)
    # What it was started with goes first; a driver on a cluster has the variable that Airflow reads; else it is itself.
    assert storage.access_of_job("store", uri, given) == storage.access_of(settings)
    own = {"AIRFLOW_CONN_STORE": json.dumps(CONNECTIONS[uri])}
    assert storage.access_of_job("store", uri, own) == storage.access_of(settings)
    assert storage.access_of_job("store", uri, {}) is None
    assert storage.access_of_job("", uri, {}) is None


def test_nothing_is_told_where_no_connection_is_named() -> None:
    assert storage.access_of(Settings(staging="s3://b/p")) is None
    assert storage.for_job(Settings(staging="s3://b/p")) == {}
    assert submit.arguments(Settings(), "m.json") == ["--manifest", "m.json"]


def test_it_opens_addresses_of_its_kind_alone_and_travels_to_workers() -> None:
    sent: filesystems.Access = pickle.loads(pickle.dumps(access("s3://b/p", CONNECTIONS["s3://b/p"])))
    assert SECRET not in repr(sent)
    filesystem, path = filesystems.locate("s3://b/p/x.parquet", sent)
    assert (filesystem.type_name, path, filesystem.region) == ("s3", "b/p/x.parquet", "eu-west-1")
    assert filesystems.locate("/tmp/x", sent)[0].type_name == "local"
    filesystem, path = filesystems.locate(f"{AZURE}/x.parquet", access(AZURE, CONNECTIONS[AZURE]))
    assert (filesystem.type_name, path) == ("abfs", "payloads/redrive/x.parquet")
