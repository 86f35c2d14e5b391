"""Connections are read from the environment by Airflow's own rules, without importing Airflow."""

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from botocore import loaders

from redrive.brokers.sqs import client
from redrive.connections import http, lookup
from redrive.connections.lookup import Connection
from redrive.errors import ConnectionMissing, SettingsError

VALUES = {
    "uri": "postgres://ana:s3cret@db.example.org:5433/orders?sslmode=require",
    "uri-old-scheme": "postgresql://db/orders",
    "uri-dashed-type": "google-cloud-platform://",
    "uri-encoded": "aws://AKIA%2FX:a%40b%3Ac%2F@/?region_name=eu-west-1",
    "uri-json-extra": "aws://@/?__extra__=%7B%22region_name%22%3A+%22eu-west-1%22%2C+%22n%22%3A+1%7D",
    "uri-protocol-in-host": "http://https://api.example.org:8443/path",
    "uri-upper-host": "mysql://u:p@DB.Example.org/s",
    "uri-socket": "postgres://u:p@%2Fvar%2Frun%2FPG/db",
    "uri-no-host": "sqlite:///orders.db",
    "uri-absolute-file": "sqlite:////srv/orders.db",
    "uri-blank-value": "aws://?a=&b=2",
    "uri-encoded-schema": "postgres://h/a%20b",
    "uri-port-only": "amqp://:5672",
    "json": json.dumps({"conn_type": "aws", "login": "k", "password": "p", "extra": {"endpoint_url": "http://x:1"}}),
    "json-extra-text": json.dumps({"conn_type": "aws", "extra": '{"region_name": "eu-west-1"}'}),
    "json-port-text": json.dumps({"conn_type": "postgresql", "host": "h", "port": "5432", "schema": "s"}),
    "json-bare": "{}",
}


@pytest.mark.airflow
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_means_what_it_means_to_airflow(value: str) -> None:
    from airflow.sdk import Connection as Theirs  # noqa: PLC0415

    theirs = Theirs.from_json(value, "c") if value.startswith("{") else Theirs.from_uri(value, "c")
    ours = lookup.parse("c", value)

    fields = ("host", "port", "login", "password", "schema")
    assert ours.conn_type == (theirs.conn_type or "")
    assert {f: getattr(ours, f) for f in fields} == {f: getattr(theirs, f) for f in fields}
    assert ours.extra == theirs.extra_dejson


def test_the_environment_is_asked_by_upper_case_id() -> None:
    found = lookup.get("orders_db", {"AIRFLOW_CONN_ORDERS_DB": VALUES["uri"]})

    assert found == Connection(
        "orders_db", "postgres", "db.example.org", 5433, "ana", "s3cret", "orders", {"sslmode": "require"}
    )


def test_secrets_are_not_in_the_repr() -> None:
    text = repr(lookup.parse("c", json.dumps({"conn_type": "aws", "password": "pw-1", "extra": {"token": "t-2"}})))

    assert "pw-1" not in text
    assert "t-2" not in text
    assert "extra.token" in text


@pytest.mark.parametrize(
    "value",
    ['{"conn_type": "aws", "password": "pw-1"', '{"pasword": "pw-1"}', '{"pw-1": 1}', "postgres://u:pw-1@h:port/db",
     '{"conn_type": "aws", "password": "pw-1", "extra": "pw-1"}',
     "postgres://u:pw-1@h:99999/db", "postgres://u:pw-1@[h/db",
     '{"conn_type": "http", "password": "pw-1", "port": 99999}',
     '{"conn_type": "http", "password": "pw-1", "port": [1]}',
     '{"conn_type": "http", "password": "pw-1", "port": -1}', "postgres://u:pw-1\uff20x@h/db"],
    ids=["broken-json", "unknown-field", "unknown-secret", "bad-port", "extra-not-json", "large-port", "bad-host",
         "large-port-in-json", "port-of-no-kind", "negative-port", "odd-password"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_without_telling_secrets(value: str) -> None:
    with pytest.raises(SettingsError) as error:
        lookup.get("orders_db", {"AIRFLOW_CONN_ORDERS_DB": value})

    assert "AIRFLOW_CONN_ORDERS_DB" in str(error.value)
    assert "pw-1" not in str(error.value)


@pytest.mark.airflow
def test_an_undefined_connection_names_the_ways_to_define_it() -> None:
    with pytest.raises(ConnectionMissing, match=r"nowhere .*AIRFLOW_CONN_NOWHERE.*airflow connections add nowhere"):
        lookup.get("nowhere", {})


@pytest.mark.airflow
def test_airflows_own_backends_are_asked_outside_of_tasks_too(tmp_path: Path) -> None:
    stored = tmp_path / "connections.json"
    stored.write_text(json.dumps({"in_backend": "postgres://u:p@h:5432/db?sslmode=require"}))
    env = {
        "PATH": os.environ["PATH"],
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(stored)}),
    }
    code = "from redrive.connections import lookup as c; print(c.sqlalchemy_url(c.get('in_backend')))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "postgresql+psycopg://u:***@h:5432/db?sslmode=require"


def test_the_fast_path_does_not_import_airflow() -> None:
    code = (
        "import sys; from redrive.connections import lookup;"
        "lookup.get('c', {'AIRFLOW_CONN_C': 'aws://'});"
        "sys.exit(any(m.split('.')[0] in ('airflow', 'botocore', 'sqlalchemy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("value", "url"),
    [
        (VALUES["uri"], "postgresql+psycopg://ana:s3cret@db.example.org:5433/orders?sslmode=require"),
        ("mysql://u:p@h:3306/s?charset=utf8", "mysql+pymysql://u:p@h:3306/s"),
        ("sqlite:///orders.db", "sqlite:///orders.db"),
        ("sqlite:////srv/orders.db", "sqlite:////srv/orders.db"),
        ("sqlite://%2Fsrv%2Forders.db", "sqlite:////srv/orders.db"),
        ('{"conn_type": "generic", "extra": {"sqlalchemy_url": "oracle://h/x"}}', "oracle://h/x"),
        ('{"conn_type": "mssql", "host": "h", "extra": {"sqlalchemy_scheme": "mssql+pyodbc"}}', "mssql+pyodbc://h"),
    ],
    ids=["postgres", "mysql", "sqlite", "sqlite-absolute", "sqlite-host", "whole-url", "scheme"],
)  # fmt: skip
def test_a_database_connection_becomes_an_sqlalchemy_url(value: str, url: str) -> None:
    made = lookup.sqlalchemy_url(lookup.parse("c", value))

    assert made.render_as_string(hide_password=False) == url


def test_a_database_url_with_a_bad_port_is_refused_without_telling_it() -> None:
    value = '{"conn_type": "generic", "extra": {"sqlalchemy_url": "oracle://u:p@w:rd@h:1:2/x"}}'
    with pytest.raises(SettingsError, match=r"connection c: extra.sqlalchemy_url can't be read$"):
        lookup.sqlalchemy_url(lookup.parse("c", value))


@pytest.mark.parametrize(
    "host", ["https://h:99999", "http://h:0", "https://[h", "http://h:x", "http:///path", "ftp://h"]
)
def test_an_address_that_nobody_can_ask_is_refused_with_the_connections_name(host: str) -> None:
    with pytest.raises(SettingsError, match="connection orders_api: its host is no address such as https://"):
        http.base_url(lookup.Connection("orders_api", "http", host), "a webhook")


def test_an_address_is_asked_where_it_says() -> None:
    assert http.base_url(lookup.Connection("c", "http", "h", 8080, schema="https"), "x").geturl() == "https://h:8080"
    assert http.base_url(lookup.Connection("c", "http", "https://h:1/base", 8080), "x").geturl() == "https://h:1/base"


def test_a_database_that_nobody_knows_says_how_to_name_it() -> None:
    with pytest.raises(SettingsError, match=r"connection c: .*'vertica'.*extra.sqlalchemy_url"):
        lookup.sqlalchemy_url(lookup.parse("c", "vertica://h/db"))


@pytest.mark.parametrize(
    ("told", "means"),
    [
        ("", True),
        ("verify=", True),
        ("verify=true", True),
        ("verify=no", False),
        ("verify=False", False),
        ("verify=/etc/ca.pem", "/etc/ca.pem"),
    ],
)
def test_whom_a_uri_trusts_is_read_from_text(told: str, means: object) -> None:
    assert lookup.verification(lookup.parse("web", f"https://host.example/?{told}")) == means
    as_json = {"": {}, "verify=true": {"verify": True}, "verify=False": {"verify": False}}.get(told)
    if as_json is not None:
        value = json.dumps({"conn_type": "https", "extra": as_json})
        assert lookup.verification(lookup.parse("web", value)) == means


def test_a_uri_that_trusts_anybody_says_so() -> None:
    context = http.trust(lookup.parse("web", "https://host.example/?verify=off"))
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_NONE)
    assert http.trust(lookup.parse("web", "https://host.example/?verify=1")).check_hostname
    with pytest.raises(SettingsError, match=r"connection web: extra\.verify: No such file"):
        http.trust(lookup.parse("web", "https://host.example/?verify=/nowhere.pem"))


@pytest.mark.parametrize(("told", "means"), [("", 30), ("timeout=", 30), ("timeout=0", 30), ("timeout=2.5", 2.5)])
def test_a_number_in_a_uri_is_read_from_text(told: str, means: float) -> None:
    assert lookup.number(lookup.parse("mq", f"pulsar://host.example/?{told}"), "timeout", otherwise=30) == means


@pytest.mark.parametrize("told", ["soon", "nan", "inf", "-1"])
def test_what_is_no_number_is_refused_by_name(told: str) -> None:
    with pytest.raises(SettingsError, match=r"connection mq: extra\.timeout is no number"):
        lookup.number(lookup.parse("mq", f"pulsar://host.example/?timeout={told}"), "timeout", otherwise=30)


@pytest.mark.parametrize(("told", "means"), [("&verify=false", False), ("&verify=true", True)])
def test_amazons_client_trusts_as_the_uri_says(told: str, means: bool) -> None:
    made = client.open_client(lookup.parse("aws", f"aws://k:s@/?region_name=eu-west-1{told}"), 5.0)
    assert made._endpoint.http_session._verify is means


@pytest.mark.parametrize(
    "half", ["k:@/?region_name=eu-west-1", "@/?region_name=eu-west-1&aws_session_token=t", ":s@/?region_name=eu-west-1"]
)
def test_half_of_amazons_keys_is_told_before_anything_is_asked(half: str) -> None:
    with pytest.raises(SettingsError, match="connection aws: of access key and secret access key, one is missing"):
        client.open_client(lookup.parse("aws", f"aws://{half}"), 5.0)


def test_descriptions_of_services_are_read_once_for_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load_file = loaders.JSONFileLoader.load_file

    def noted(self: loaders.JSONFileLoader, path: str) -> object:
        read.append(path)
        return load_file(self, path)

    monkeypatch.setattr(loaders.JSONFileLoader, "load_file", noted)
    client._descriptions.cache_clear()
    connections = [lookup.parse("aws", f"aws://k:s@/?region_name={region}") for region in ("eu-west-1", "us-east-1")]
    first, second = (client.open_client(connection, 5.0) for connection in connections)
    assert any("sqs" in path for path in read)
    assert len(read) == len(set(read))
    assert (first.meta.region_name, second.meta.region_name) == ("eu-west-1", "us-east-1")
