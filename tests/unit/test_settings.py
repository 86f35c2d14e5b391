"""The configuration: what it takes, what it refuses, and that a refusal names the key."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from redrive import settings
from redrive.brokers import registry
from redrive.brokers.base import BrokerKind
from redrive.classification.causes import Cause, Verdict
from redrive.errors import SettingsError
from redrive.selectors import Kind
from redrive.settings import Route, Settings
from redrive.settings.expressions import check_expression
from redrive.settings.page import configuration_page
from redrive.settings.words import check_schedule

REPOSITORY = Path(__file__).parents[2]
ROOT = Path("/home/redrive")


def read(text: str, env: Mapping[str, str] | None = None) -> Settings:
    return settings.parse(text, env=env or {}, root=ROOT)


def route(keys: str = "", sources: str = "[{queue: dead}]") -> Route:
    lines = "\n".join(f"    {line}" for line in keys.splitlines())
    return read(f"routes:\n  r:\n    broker: memory\n    sources: {sources}\n{lines}\n").route("r")


def refusal(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text, env)
    return str(caught.value).splitlines()


def route_refusal(keys: str, sources: str = "[{queue: dead}]") -> str:
    with pytest.raises(SettingsError) as caught:
        route(keys, sources)
    return str(caught.value)


# --- the example and the design -----------------------------------------------------------------------


def test_the_example_of_the_repository_is_valid() -> None:
    orders = settings.load(env={"REDRIVE_HOME": str(REPOSITORY)}).route("orders")
    assert orders.connection == "sqs_demo"
    assert [source.kind for source in orders.sources] == ["dead_letter", "delay"]
    assert orders.canary is not None
    assert orders.canary.observe == timedelta(seconds=3)
    assert orders.processed_check is not None
    assert orders.processed_check.key.name == "message_id"


def test_everything_that_the_design_lists_is_taken() -> None:
    orders = route(
        """\
connection: sqs_demo
destination: {queue: orders}
fan_out: refuse
requeue_attempts: 2
delay_attempts: 5
backoff: {first: 1m, factor: 2, max: 6h, native: false}
drain: {shards: 2, limit: 100000, flush_messages: 5000, flush_bytes: 64MiB, lease: 5m, wait: 2s}
deliver: {shards: 1, slice: 1000, confirm_window: 200, run_for: 8m, tries: 3}
rate: {per_second: 500, max_in_flight: 5000}
canary: {first: 20, grow: 10, pass: 0.95, observe: auto}
breaker: {return_rate: 0.5, min_samples: 20, cool_down: 15m, max_held_share: 0.6}
order_by: null
on_unknown: auto
processed_check:
  connection: orders_db
  query: select message_id from processed where message_id in :keys
  key: attribute:message_id
  settle_after: 5m
evidence: ["attribute:error", "body:$.error.message"]
rules: [{match: "SKU \\\\S+ not in catalogue", cause: missing_data}]
causes: {throttled: {verdict: delay, rate: {per_second: 20}}}
isolation: {ack_timeout: 5m, action: none}
approvals: 1
redact: [email, card, "$.customer.name"]
notify: []
slo: 24h
give_up_after: 14d
retention: 30d
schedule: "*/10 * * * *"
""",
        "[{queue: orders-dlq, kind: dead_letter, lease: 30s, max_deliveries: 5, retention: 4d},"
        " {queue: orders-delay, kind: delay, delay: 5m, destination: orders}]",
    )
    assert orders.drain.flush_bytes == 64 << 20
    assert orders.evidence[1].kind is Kind.BODY
    assert orders.causes[Cause.THROTTLED].verdict is Verdict.DELAY
    assert orders.destination_of("orders-delay") == "orders"
    # What the design shows is what a route has that says nothing, apart from what only the route can know.
    shown = orders.model_dump(exclude={"connection", "sources", "destination", "processed_check", "evidence"})
    plain = route().model_dump(exclude={"connection", "sources", "destination", "processed_check", "evidence"})
    assert {key for key in shown if shown[key] != plain[key]} == {"rules", "causes", "redact"}


def test_the_page_of_documentation_is_current() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "run: python -m redrive.settings > docs/configuration.md"


def test_every_key_is_described() -> None:
    rows = [line for line in configuration_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 90
    assert not [row for row in rows if row.rstrip("| ").count("|") < 3]


# --- files, homes, variables --------------------------------------------------------------------------


def test_the_file_is_found_by_home_or_by_its_own_variable(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redrive.yaml").write_text("staging: here")
    (tmp_path / "other.yaml").write_text("staging: s3://bucket/there/")
    home = {"REDRIVE_HOME": str(tmp_path)}
    assert settings.load(env=home).staging == str(tmp_path / "here")
    assert settings.load(env={**home, "REDRIVE_CONFIG": "other.yaml"}).staging == "s3://bucket/there"
    assert settings.load(tmp_path / "other.yaml", env=home).staging == "s3://bucket/there"


@pytest.mark.parametrize("text", ["", "{database: 'sqlite:///demo.db', staging: demo}"])
def test_the_environment_says_where_state_is_whatever_the_file_says(text: str) -> None:
    env = {"REDRIVE_DATABASE_URL": "postgresql://redrive@db/ledger", "REDRIVE_STAGING_URI": "s3://bucket/prefix"}
    found = settings.parse(text, env=env, root=Path("/srv"))
    assert (found.database, found.staging) == ("postgresql+psycopg://redrive@db/ledger", "s3://bucket/prefix")
    nothing = {"REDRIVE_DATABASE_URL": "", "REDRIVE_STAGING_URI": ""}
    assert settings.parse(text, env=nothing, root=Path("/srv")) == settings.parse(text, env={}, root=Path("/srv"))
    assert settings.parse(text, env={"REDRIVE_STAGING_URI": "kept"}, root=Path("/srv")).staging == "/srv/kept"


def test_a_place_of_the_environments_is_refused_by_its_name_and_without_its_secret() -> None:
    env = {"REDRIVE_DATABASE_URL": "mysql://root:secret@db/ledger", "REDRIVE_STAGING_URI": "ftp://host/folder"}
    with pytest.raises(SettingsError) as refused:
        settings.parse("database: sqlite:///var/redrive.db", env=env, root=Path("/srv"))
    assert str(refused.value).splitlines() == [
        "REDRIVE_DATABASE_URL: has to be sqlite:///path or postgresql://user:password@host/name",
        "REDRIVE_STAGING_URI: 'ftp://host/folder': write a folder, s3://bucket/prefix, gs://bucket/prefix or "
        "abfs://container@account.dfs.core.windows.net/prefix",
    ]


def test_a_checkout_is_its_own_home() -> None:
    assert settings.home({}) == settings.checkout() == REPOSITORY
    assert settings.home({"REDRIVE_CONFIG": "/etc/redrive.yaml", "AIRFLOW_HOME": "/opt/airflow"}) == REPOSITORY


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"REDRIVE_HOME": "/srv", "REDRIVE_CONFIG": "/etc/redrive.yaml", "AIRFLOW_HOME": "/opt/airflow"}, "/srv"),
        ({"REDRIVE_CONFIG": "/etc/redrive/my.yaml", "AIRFLOW_HOME": "/opt/airflow"}, "/etc/redrive"),
        ({"REDRIVE_CONFIG": "/srv/config/redrive.yaml"}, "/srv"),
        ({"REDRIVE_CONFIG": "my.yaml", "AIRFLOW_HOME": "/opt/airflow"}, "/opt/airflow"),
        ({"AIRFLOW_HOME": "~/airflow"}, str(Path.home() / "airflow")),
        ({}, str(Path.cwd())),
    ],
)
def test_an_installed_package_lives_where_its_configuration_or_airflow_does(
    env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.settings.places.checkout", lambda: None)
    assert settings.home(env) == Path(expected)


def test_what_is_installed_is_no_checkout(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "plugins" / "redrive", tmp_path / "plugins" / "redrive")
    ask = "from redrive.settings import checkout; print(checkout())"
    found = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "plugins")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "None"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: can't be read .*REDRIVE_CONFIG"):
        settings.load(tmp_path / "none.yaml", env={})


@pytest.mark.slow
def test_two_thousand_routes_may_say_much() -> None:
    keys = f"broker: memory, redact: [{', '.join(['email'] * 50)}]"
    found = read("routes:\n" + "".join(f"  r{n}: {{{keys}, sources: [{{queue: dead-{n}}}]}}\n" for n in range(2_000)))
    assert len(found.routes) == 2_000


GOOD_AND_BAD = """
routes:
  good: {{broker: memory, sources: [{{queue: dead}}]}}
  {bad}
"""


@pytest.mark.parametrize(
    ("bad", "name", "said"),
    [
        pytest.param(
            "bad: {broker: memory, sources: [{queue: dead}], retries: 3}", "bad", "routes.bad.retries:", id="key"
        ),
        pytest.param("bad: {broker: memory, sources: []}", "bad", "routes.bad.sources:", id="value"),
        pytest.param(
            "bad: {broker: memory, sources: [{queue: a}, {queue: a}]}", "bad", "routes.bad.sources.1.queue:", id="both"
        ),
        pytest.param("bad: {broker: memory, sources: [{queue: '${NOT_THERE}'}]}", "bad", "NOT_THERE", id="variable"),
        pytest.param("bad: {broker: memory, broker: memory, sources: [{queue: dead}]}", "bad", "twice", id="twice"),
        pytest.param("bad: nothing", "bad", "routes.bad:", id="no-mapping"),
        pytest.param("bad:", "bad", "routes.bad:", id="empty"),
        pytest.param("So Bad: {broker: memory, sources: [{queue: dead}]}", "So Bad", "routes.So Bad:", id="name"),
        pytest.param(
            "bad: {broker: memory, sources: [{queue: a}, {queue: dead}]}",
            "bad",
            "routes.bad.sources.1.queue: 'dead' is a source of route good too",
            id="anothers",
        ),
    ],
)
def test_a_broken_route_is_left_out_alone(tmp_path: Path, bad: str, name: str, said: str) -> None:
    file = tmp_path / "redrive.yaml"
    file.write_text(GOOD_AND_BAD.format(bad=bad))
    found = settings.load(file, env={})
    assert list(found.routes) == ["good"]
    assert list(found.broken) == [name]
    assert said in found.broken[name].problem
    with pytest.raises(SettingsError) as refused:
        found.route(name)
    assert str(refused.value) == found.broken[name].problem
    with pytest.raises(SettingsError, match=re.escape(said)):  # what is parsed as a whole is right as a whole
        settings.parse(file.read_text(), env={}, root=ROOT)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("routes: {bad: {broker: memory, sources: []}}", id="no-other-route"),
        pytest.param(GOOD_AND_BAD.format(bad="bad: {}") + "staging: ''", id="what-all-share"),
        pytest.param(GOOD_AND_BAD.format(bad="bad: {}") + "defaults: {retries: 3}", id="defaults"),
        pytest.param("routes: [good]", id="no-routes"),
    ],
)
def test_what_is_wrong_for_every_route_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "redrive.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        settings.load(file, env={})


@pytest.mark.parametrize(
    ("wrong", "schedule"),
    [("schedule: '@daily', rate: {per_second: many}", "@daily"), ("schedule: perhaps", None)],
)
def test_of_a_broken_route_its_sound_keys_remain(tmp_path: Path, wrong: str, schedule: str | None) -> None:
    file = tmp_path / "redrive.yaml"
    sound = "broker: memory, sources: [{queue: dead}], title: Mail, drain: {shards: 3}"
    file.write_text(GOOD_AND_BAD.format(bad=f"bad: {{{sound}, {wrong}}}"))
    remains = settings.load(file, env={}).broken["bad"].remains
    assert (remains.title, remains.drain.shards, remains.schedule) == ("Mail", 3, schedule)


def test_relative_places_count_from_home() -> None:
    plain = read("")
    assert plain.database == "sqlite:////home/redrive/var/redrive.db"
    assert plain.staging == "/home/redrive/var/staging"
    assert read("database: sqlite:////var/ledger.db").database == "sqlite:////var/ledger.db"
    assert read("staging: /data").staging == "/data"
    assert read("staging: gs://bucket").staging == "gs://bucket"


def test_postgresql_is_reached_through_psycopg_however_it_is_written() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        assert read(f"database: {scheme}://u:p@h/d").database == "postgresql+psycopg://u:p@h/d"


def test_variables_are_expanded_as_in_a_shell() -> None:
    text = "staging: s3://${BUCKET}/${PREFIX:-redrive}"
    assert read(text, {"BUCKET": "b"}).staging == "s3://b/redrive"
    assert read(text, {"BUCKET": "b", "PREFIX": ""}).staging == "s3://b/redrive"
    assert read(text, {"BUCKET": "b", "PREFIX": "p"}).staging == "s3://b/p"
    assert route("title: costs $${5} or $5").title == "costs ${5} or $5"


def test_a_missing_variable_is_named_with_its_key() -> None:
    lines = refusal("database: ${LEDGER}\nroutes: {r: {connection: '${CONN}'}}")
    assert lines == [
        "database: the environment variable LEDGER is not set and has no default",
        "routes.r.connection: the environment variable CONN is not set and has no default",
    ]


def test_a_number_can_come_from_the_environment() -> None:
    text = "routes: {r: {broker: memory, sources: [{queue: q}], requeue_attempts: '${N}'}}"
    assert read(text, {"N": "7"}).route("r").requeue_attempts == 7


@pytest.mark.parametrize(
    "part", ["rate: {per_second: .inf}", "canary: {grow: .inf}", "causes: {throttled: {rate: {per_second: .inf}}}"]
)
def test_a_number_without_end_is_refused_by_its_key(part: str) -> None:
    """YAML has it, and nothing can be counted with it: every delivery would fail over it."""
    key = part.replace("{", "").split(": ")[-2]
    [line] = refusal(f"routes: {{r: {{broker: memory, sources: [{{queue: q}}], {part}}}}}")
    assert key in line
    assert "finite" in line


# --- defaults -----------------------------------------------------------------------------------------


def test_a_route_inherits_key_by_key() -> None:
    both = read(
        """
defaults: {drain: {shards: 4, limit: 10}, slo: 1h, redact: [email], canary: {first: 3}}
routes:
  a: {broker: memory, sources: [{queue: q}], drain: {limit: 20}}
  b: {broker: memory, sources: [{queue: other}], slo: 2h, redact: [card], canary: off}
"""
    )
    a, b = both.route("a"), both.route("b")
    assert (a.drain.shards, a.drain.limit, a.slo) == (4, 20, timedelta(hours=1))
    assert (b.drain.shards, b.drain.limit, b.slo) == (4, 10, timedelta(hours=2))
    assert (a.redact, b.redact) == (("email",), ("card",))
    assert a.canary is not None
    assert a.canary.first == 3
    assert b.canary is None


def test_a_header_that_no_failure_text_is_taken_from_may_be_masked() -> None:
    masks = route("redact: ['attribute:x-user']\nevidence: ['attribute:why', 'body:$.x-user']").redact
    assert masks == ("attribute:x-user",)


def test_a_mistake_in_defaults_is_told_once_and_there() -> None:
    text = "defaults: {drain: {shrads: 4}, slo: soon}\n"
    routes = "".join(f"  {name}: {{broker: memory, sources: [{{queue: q}}]}}\n" for name in "abc")
    for whole in (text, f"{text}routes:\n{routes}"):
        lines = refusal(whole)
        assert [line.split(":")[0] for line in lines] == ["defaults.drain.shrads", "defaults.slo"]


def test_defaults_may_be_completed_by_a_route() -> None:
    check = "{connection: db, query: 'select id from done where id in :keys'}"
    text = f"defaults: {{processed_check: {check}}}\n"
    text += "routes: {r: {broker: memory, sources: [{queue: q}]%s}}"
    assert read(text % ", processed_check: {key: broker_id}").route("r").processed_check is not None
    assert refusal(text % "") == ["routes.r.processed_check.key: is required"]


# --- refusals -----------------------------------------------------------------------------------------


def test_all_problems_are_listed_each_with_its_key() -> None:
    lines = refusal(
        """
databse: x
routes:
  orders:
    broker: amazon_sq
    sources: [{queue: a, kind: delay}, {kind: dead}]
    drain: {shards: 0, flush_bytes: 3 apples, flush_messages: 1000001}
    causes: {throtled: {verdict: delay}, throttled: {verdict: dely}}
    order_by: broker_id
    rules: [{match: "(a)\\\\1", cause: missing}]
  Bad-Name: {broker: memory, sources: [{queue: q}]}
"""
    )
    by_key = dict(line.split(": ", 1) for line in lines)
    assert "did you mean database?" in by_key["databse"]
    assert "did you mean amazon_sqs?" in by_key["routes.orders.broker"]
    assert "required" in by_key["routes.orders.sources.0.delay"]
    assert "required" in by_key["routes.orders.sources.1.queue"]
    assert "not 0" in by_key["routes.orders.drain.shards"]
    assert "64MiB" in by_key["routes.orders.drain.flush_bytes"]
    assert "1000000" in by_key["routes.orders.drain.flush_messages"]
    assert "did you mean throttled?" in by_key["routes.orders.causes.throtled"]
    assert "did you mean delay?" in by_key["routes.orders.causes.throttled.verdict"]
    assert "possible are" in by_key["routes.orders.order_by"]
    assert "bounded time" in by_key["routes.orders.rules.0.match"]
    assert "did you mean missing_data?" in by_key["routes.orders.rules.0.cause"]
    assert "lower-case" in by_key["routes.Bad-Name"]
    assert "routes.orders.sources" not in by_key  # its items are wrong, not their number


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ("drain: {shrads: 2}", "routes.r.drain.shrads: unknown key; did you mean shards?"),
        ("canary: {pas: 1}", "routes.r.canary.pas: unknown key; did you mean pass?"),
        ("causes: {throttled: {rate: {persecond: 1}}}", "did you mean per_second?"),
        ("canary:", "routes.r.canary: write off"),
        ("canary: {pass: 0}", "routes.r.canary.pass: should be greater than 0"),
        ("canary: {grow: 1}", "routes.r.canary.grow: should be greater than 1"),
        ("backoff: {first: 1h, max: 1m}", "routes.r.backoff.max: 1m is shorter than first, 1h"),
        ("requeue_attempts: -1", "routes.r.requeue_attempts: should be greater than or equal to 0"),
        ("approvals: 3", "routes.r.approvals: should be 1 or 2, not 3"),
        ("approvals: yes", "routes.r.approvals: should be a number; yes, no, on and off are true and false"),
        ("most_messages: true", "routes.r.most_messages: should be a number"),
        ("breaker: {return_rate: on}", "routes.r.breaker.return_rate: should be a number"),
        (
            "causes: {throttled: {rate: {per_second: on}}}",
            "routes.r.causes.throttled.rate.per_second: should be a number",
        ),
        ("slo: 30", "routes.r.slo: 30 is not a duration"),
        ("slo: 0s", "routes.r.slo: has to be longer than nothing"),
        ("drain: {lease: 13h}", "routes.r.drain.lease: 13h is too long; at most 12h"),
        ("canary: {observe: soon}", "routes.r.canary.observe: 'soon' is not a duration"),
        ("schedule: '61 * * * *'", "routes.r.schedule: '61 * * * *': '61' is not between 0 and 59"),
        ("redact: [emial]", "routes.r.redact.0: 'emial': write email, card, credentials or a path"),
        (
            "redact: [credentials]\nsearch: [key, 'attribute:x-token']",
            "routes.r.search.1: attribute:x-token: redact masks",
        ),
        ("redact: ['attribute:Tenant']\nsearch: ['attribute:tenant']", "routes.r.search.0: attribute:tenant: redact"),
        ("redact: [email, 'attribute:Error_Message']", "routes.r.redact.1: attribute:Error_Message: failure texts of"),
        (
            "redact: ['attribute:why']\nevidence: ['attribute:Why']",
            "routes.r.redact.0: attribute:why: failure texts of",
        ),
        ("evidence: [key]", "routes.r.evidence.0: key can't be used here; possible are attribute, body"),
        ("broker: rabbitmq\nconnection: c\nisolation: {action: close}", "routes.r.isolation.action:"),
        (
            "broker: amazon_sqs\nconnection: c\nisolation: {action: close_connection}",
            "routes.r.isolation.action: close_connection is not possible",
        ),
        ("destination: {queue: dead}", "routes.r.sources.0.queue: 'dead' is also its destination: a loop"),
        ("title: [a]", "routes.r.title: should be a text"),
        ("destination: orders", "routes.r.destination: should be a mapping, as in {key: value}, not 'orders'"),
        ("evidence: attribute:error", "routes.r.evidence: should be a list, as in [a, b], not 'attribute:error'"),
        ("notify: ['https://user:secret@host']", "routes.r.notify.0:"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(keys: str, refused: str) -> None:
    broker = "" if keys.startswith("broker:") else "broker: memory\n"
    lines = "\n".join(f"    {line}" for line in (broker + keys).splitlines())
    text = f"routes:\n  r:\n    sources: [{{queue: dead}}]\n{lines}\n"
    assert refused in "\n".join(refusal(text))


@pytest.mark.parametrize(
    ("sources", "refused"),
    [
        ("[]", "routes.r.sources: should have at least 1 item"),
        ("[{queue: a}, {queue: a}]", "routes.r.sources.1.queue: 'a' is listed twice"),
        ("[{queue: a, delay: 1m}]", "routes.r.sources.0.delay: is only for sources of kind delay"),
        (
            "[{queue: a, kind: delay, delay: 1m}]",
            "routes.r.sources.0.destination: is required for a delay source",
        ),
        (
            "[{queue: a, origins: [x, b]}, {queue: b}]",
            "routes.r.sources.0.origins.1: 'b' is a source of this route too: what goes back there from 'a' is drained"
            " again, a loop",
        ),
        ("[{queue: a, origins: [a]}]", "routes.r.sources.0.origins.0: 'a' is a source of this route too"),
    ],
)
def test_sources_that_make_no_sense_are_refused(sources: str, refused: str) -> None:
    assert refused in route_refusal("", sources)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("{queue: a}", "{queue: a}", True),
        ("{queue: b}, {queue: a}", "{queue: c}, {queue: a}", True),
        ("{queue: 'news/*'}", "{queue: news/Subscriptions/mail/$DeadLetterQueue}", True),
        ("{queue: news/Subscriptions/mail/$DeadLetterQueue}", "{queue: 'news/*'}", True),
        ("{queue: 'news/*'}", "{queue: 'news/*'}", True),
        ("{queue: 'news/*'}", "{queue: orders}", False),
        ("{queue: a}", "{queue: b}", False),
    ],
)
def test_two_routes_never_drain_one_queue(one: str, other: str, same: bool) -> None:
    """A return that the other takes would never be seen: all that failed again would be presumed to be well."""
    bus = "broker: azure_service_bus, connection: c, destination: {queue: d}"
    text = f"routes:\n  x: {{{bus}, sources: [{one}]}}\n  y: {{{bus}, sources: [{other}]}}\n"
    if not same:
        assert len(read(text).routes) == 2
        return
    (line,) = refusal(text)
    assert line.startswith("routes.y.sources.")
    assert "is a source of route x too" in line
    found = settings.parse(text, env={}, root=Path("/srv/redrive"), without_broken=True)
    assert (list(found.routes), list(found.broken)) == (["x"], ["y"])
    assert len(read(text.replace("connection: c", "connection: d", 1)).routes) == 2  # on another broker


SQS = ("amazon_sqs", "orders-dlq", "arn:aws:sqs:eu-west-1:123456789012:orders-dlq")
SQS_URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders-dlq"
PUBSUB = ("google_pubsub", "orders-dead", "projects/p/subscriptions/orders-dead")
PULSAR = ("apache_pulsar", "orders-DLQ", "persistent://public/default/orders-DLQ")
ONE_QUEUE = [
    SQS,
    ("amazon_sqs", "orders-dlq", SQS_URL),
    ("amazon_sqs", SQS[2], SQS_URL),
    ("amazon_sqs", "orders-dlq", "http://localhost:9324/000000000000/orders-dlq/"),
    PUBSUB,
    PULSAR,
    ("apache_pulsar", "orders-DLQ", "orders-DLQ-partition-0"),
    ("apache_pulsar", f"{PULSAR[2]}-partition-1", "orders-DLQ"),
]
TWO_QUEUES = [
    ("amazon_sqs", SQS[2], SQS_URL.replace("eu-west-1", "us-east-1")),
    ("amazon_sqs", SQS[2], SQS_URL.replace("123456789012", "210987654321")),
    ("amazon_sqs", "orders-dlq", "Orders-dlq"),
    ("google_pubsub", PUBSUB[2], PUBSUB[2].replace("/p/", "/q/")),
    ("google_pubsub", "orders-dead", "projects/p/topics/orders-dead"),
    ("apache_pulsar", PULSAR[2], PULSAR[2].replace("public", "private")),
    ("apache_pulsar", "orders-DLQ-partition-0", "orders-DLQ-partition-1"),
    ("rabbitmq", "orders", "Orders"),
]


def two_routes(broker: str, one: str, other: str) -> str:
    way = f"broker: {broker}, connection: c, destination: {{queue: elsewhere}}"
    return "routes:\n" + "".join(
        f"  {name}: {{{way}, sources: [{{queue: '{queue}'}}]}}\n" for name, queue in (("x", one), ("y", other))
    )


@pytest.mark.parametrize(
    ("broker", "one", "other"),
    [
        *ONE_QUEUE,
        ("azure_service_bus", "orders", "Orders"),
        ("azure_service_bus", "orders/$deadletterqueue", "orders/$DeadLetterQueue"),
        ("azure_service_bus", "news/*", "News/Subscriptions/*"),
    ],
)
def test_one_queue_under_two_names_is_no_source_of_two_routes(broker: str, one: str, other: str) -> None:
    for first, second in ((one, other), (other, one)):
        (line,) = refusal(two_routes(broker, first, second))
        kind = registry.kind(broker)
        names = [kind.source_name(name, "dead_letter") for name in (first, second)]
        assert line.startswith(f"routes.y.sources.0.queue: {names[1]!r} is a source of route x too, as {names[0]!r}")


@pytest.mark.parametrize(("broker", "one", "other"), TWO_QUEUES)
def test_names_that_tell_of_different_places_are_two_queues(broker: str, one: str, other: str) -> None:
    assert len(read(two_routes(broker, one, other)).routes) == 2
    way = f"broker: {broker}, connection: c, destination: {{queue: '{other}'}}"
    assert read(f"routes: {{x: {{{way}, sources: [{{queue: '{one}'}}]}}}}").routes


@pytest.mark.parametrize(
    ("broker", "one", "other"),
    [*(one for one in ONE_QUEUE if one != PUBSUB), ("azure_service_bus", "a/$Active", "A/$active")],
)
def test_a_loop_is_refused_under_another_name_too(broker: str, one: str, other: str) -> None:
    way = f"broker: {broker}, connection: c"
    source = f"queue: '{one}'"
    (line,) = refusal(f"routes: {{x: {{{way}, destination: {{queue: '{other}'}}, sources: [{{{source}}}]}}}}")
    assert f"{one!r} is also its destination, as {other!r}" in line
    twice = f"{{{source}}}, {{queue: '{other}'}}"
    (line,) = refusal(f"routes: {{x: {{{way}, destination: {{queue: elsewhere}}, sources: [{twice}]}}}}")
    assert f"{other!r} is listed twice, as {one!r}" in line
    (line,) = refusal(f"routes: {{x: {{{way}, sources: [{{{source}, origins: ['{other}']}}]}}}}")
    assert f"{other!r} is a source of this route too, as {one!r}" in line


@pytest.mark.parametrize("topic", ["orders", "projects/p/topics/orders"])
def test_a_topic_and_a_subscription_of_one_name_are_no_loop(topic: str) -> None:
    """What is sent to the one is not drained from the other."""
    source = "queue: projects/p/subscriptions/orders"
    way = "broker: google_pubsub, connection: c"
    assert read(f"routes: {{x: {{{way}, destination: {{queue: '{topic}'}}, sources: [{{{source}}}]}}}}").routes
    assert read(f"routes: {{x: {{{way}, sources: [{{{source}, origins: ['{topic}']}}]}}}}").routes
    (line,) = refusal(f"routes: {{x: {{{way}, destination: {{queue: orders}}, sources: [{{queue: orders}}]}}}}")
    assert "'orders' is also its destination: a loop" in line


def test_two_urls_of_which_none_tells_all_are_to_be_written_as_arns() -> None:
    one, other = (f"https://vpce-{n}.sqs.eu-west-1.vpce.amazonaws.com/123456789012/orders-dlq" for n in (1, 2))
    (line,) = refusal(two_routes("amazon_sqs", one, other))
    assert "(if these are two, write both as an ARN)" in line


def test_many_routes_over_one_connection_are_not_each_held_beside_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plain = registry.kind

    def counting(name: str) -> BrokerKind:
        kind = plain(name)

        def many(queue: str) -> bool:
            asked.append(queue)
            return kind.many(queue)

        return replace(kind, many=many)

    monkeypatch.setattr(registry, "kind", counting)
    counts = []
    for routes in (50, 100):
        asked.clear()
        bus = "broker: azure_service_bus, connection: c, destination: {queue: d}"
        read("routes:\n" + "".join(f"  r{n}: {{{bus}, sources: [{{queue: q{n}}}]}}\n" for n in range(routes)))
        counts.append(len(asked))
    assert 0 < counts[1] <= 2 * counts[0]


def test_a_route_needs_a_connection_unless_it_is_in_memory() -> None:
    assert refusal("routes: {r: {broker: rabbitmq, sources: [{queue: q}]}}") == [
        "routes.r.connection: is required with broker rabbitmq"
    ]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("routes: {r: {slo: 1h, slo: 2h}}", "routes.r.slo: is there twice"),
        ("a: [", "not YAML"),
        ("- a", "keys and values"),
        ("1: 2", "1: keys are text"),
        ("&a [*a]", "not a configuration"),
        ("defaults: &a {drain: *a}", "nested too deeply"),
        ("a: !!python/object/apply:os.system [id]", "not YAML"),
        ("[" * 5000, "not"),
        ("title: ${oops", "title: write ${VAR}"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text: str, refused: str) -> None:
    assert refused in "\n".join(refusal(text))


def test_aliases_do_not_blow_up() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    names = "abcdefghi"
    bomb += "".join(f"{n}: &{n} [{','.join(['*' + m] * 9)}]\n" for m, n in pairwise(names))
    assert "too large" in "\n".join(refusal(bomb))


def test_secrets_are_not_repeated() -> None:
    for text in ("database: mysql://u:hunter2@h/d", "spark: {conf: {k: [hunter2]}}"):
        assert "hunter2" not in "\n".join(refusal(text))
    for text in (
        "spark: {runner: connect, remote: 'spark:15002/;token=hunter2'}",
        "spark: {history: 'ftp://u:hunter2@h'}",
        "spark: {batch_bucket: 'file://u:hunter2@h'}",
        "page: 'ftp://u:hunter2@h'",
        "staging: 'ftp://u:hunter2@h/folder'",
    ):
        (said,) = refusal(text)
        assert "hunter2" not in said
        assert said.startswith(text.partition(":")[0])
    for route in (
        "notify: [{connection: chat, path: 'services/hunter2'}]",
        "notify: [{notifier: a.B, arguments: hunter2}]",
        "processed_check: {connection: shop, key: key, path: 'done?token=hunter2'}",
        "processed_check: {connection: shop, key: key, path: /done, request: hunter2}",
    ):
        assert "hunter2" not in route_refusal(route)
    assert "not 'often'" in route_refusal("requeue_attempts: often")
    for connection in ("connection: amqp://u:hunter2@h", "notify: [{connection: 'https://u:hunter2@h'}]"):
        (said,) = route_refusal(connection).splitlines()
        assert "hunter2" not in said
        assert "is no Airflow connection id, such as orders of AIRFLOW_CONN_ORDERS" in said
    assert "hunter2" not in repr(read("database: postgresql://u:hunter2@h/d"))


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("database: mysql://h/d", "database: has to be sqlite"),
        ("database: 'sqlite://'", "database: has to name a file"),
        ("database: 'sqlite:///:memory:'", "database: has to name a file"),
        ("staging: s3a://bucket", "staging: 's3a://bucket': write a folder, s3://"),
        ("staging: 's3://'", "staging: 's3://': write"),
        ("spark: {runner: connect}", "spark.remote: is required with runner connect"),
        *(
            (f"spark: {{runner: connect, remote: 'sc://{place}'}}", "spark.remote: is no address: write scheme://host")
            for place in ("host:99999", "host:0", "[bad", "host:abc", "host:15002;token=hunter2")
        ),
        ("spark: {history: 'http://host:99999'}", "spark.history: is no address"),
        ("page: 'https://[bad'", "page: is no address"),
        ("staging: 's3://[bad/x'", "staging: is no address"),
        (
            "spark: {runner: emr_serverless, application_id: a, execution_role_arn: 'arn:x', batch_bucket: 's3://[b'}",
            "spark.batch_bucket: is no address",
        ),
        *(
            (f"database: 'postgresql://{place}/d'", "database: its port is no number from 1 to 65535")
            for place in ("h:abc", "u:hunter2@h:99999", "u:p@h:5432:3", "h:0")
        ),
        (
            "spark: {runner: emr_serverless, application_id: a, batch_bucket: 's3://b'}",
            "spark.execution_role_arn",
        ),
        (
            "spark: {runner: dataproc_serverless, region: r, batch_bucket: 's3://b'}",
            "spark.batch_bucket: has to be gs",
        ),
        (
            "spark: {runner: dataproc_serverless, region: r, batch_bucket: 'gs://b'}",
            "staging: has to be gs://",
        ),
    ],
)
def test_places_are_checked(text: str, refused: str) -> None:
    told = "\n".join(refusal(text))
    assert refused in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "text",
    [
        "spark: {runner: connect, remote: 'sc://spark:15002/;token=abc'}",
        "spark: {runner: connect, remote: 'sc://[::1]:15002'}",
        "database: postgresql://u:pa/ss:w@[::1]:5432/d?application_name=a:b",
        "database: postgresql:///d?host=/var/run/postgresql",
        "database: postgresql://h:/d",
        "staging: abfs://box@account.dfs.core.windows.net/prefix",
        "page: https://airflow.example.org:8080/base",
    ],
)
def test_addresses_are_taken_as_they_are_written(text: str) -> None:
    read(text)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("select id from done where id = :key", "found :key"),
        ("select id from done", "found none"),
        ("select id from done where id in :keys and day > :day", "found :keys, :day"),
        ("select id from done where id in ':keys'", "found none"),
        ("delete from done where id in :keys", "one select"),
        ("select 1; delete from done where id in :keys", "one select"),
    ],
)
def test_a_processed_check_binds_the_keys_and_only_reads(query: str, problem: str) -> None:
    text = route_refusal(f'processed_check: {{connection: db, key: broker_id, query: "{query}"}}')
    assert text.startswith("routes.r.processed_check.query: ")
    assert problem in text


def test_a_processed_check_may_cast_and_name_times() -> None:
    query = "with d as (select id::text from done) select id from d where id in :keys and note <> 'a:b 12:30'"
    check = route(f'processed_check: {{connection: db, key: broker_id, query: "{query}"}}').processed_check
    assert check is not None
    assert check.query == query


def test_an_unknown_route_lists_those_there_are() -> None:
    least = "{{broker: memory, sources: [{{queue: {}}}]}}"
    two = read(f"routes: {{orders: {least.format('q')}, mail: {least.format('p')}}}")
    with pytest.raises(SettingsError, match=r"no such route; did you mean orders\?; there are: mail, orders"):
        two.route("order")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        route().slo = timedelta(1)  # type: ignore[misc]


# --- words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("1h30m", 5400),
        ("4d", 345600),
        ("1w", 604800),
        ("1.5h", 5400),
        ("0s", 0),
        ("PT5M", 300),
        ("P1DT2H", 93600),
        ("P2W", 1209600),
        ("PT0.5S", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert settings.parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        5,
        5.0,
        True,
        None,
        "m",
        "5 minutes",
        "-5m",
        "5M",
        "P",
        "PT",
        "P1M",
        "1e9d",
        "999999999w",
        "5m!",
        "٣s",
    ],
)
def test_what_is_not_a_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|longer than ten years"):
        settings.parse_duration(value)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_a_duration_is_read_as_it_is_written(duration: timedelta) -> None:
    whole = timedelta(milliseconds=duration // timedelta(milliseconds=1))
    if whole < timedelta(milliseconds=100_000) or whole.microseconds == 0:
        assert settings.parse_duration(settings.format_duration(whole)) == whole


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("5MB", 5_000_000), ("1 GiB", 1 << 30), (7, 7), ("7", 7)]
)
def test_sizes(text: object, size: int) -> None:
    assert settings.parse_size(text) == size


@pytest.mark.parametrize("value", ["", "3 apples", "-1", 1.5, True, None, "1TB"])
def test_what_is_not_a_size(value: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        settings.parse_size(value)


@pytest.mark.parametrize("text", ["*/10 * * * *", "0 3 * * 1-5", "0,30 8-18/2 1 1,7 0", "@hourly"])
def test_schedules(text: str) -> None:
    assert check_schedule(text) == text


@pytest.mark.parametrize(
    "text", ["", "* * * *", "* * * * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "@often", "a * * * *"]
)
def test_what_is_not_a_schedule(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        check_schedule(text)


@pytest.mark.parametrize(
    "text",
    [
        r"SKU \S+ not in catalogue",
        r"(?i)timed? out after \d+ ?ms",
        r"^a.*b[^)(+*]+$",
        r"(?:foo|bar)+ x",
        r"(ab{1,9}){1,9}",
        r"[]a-z]+x",
        r"\(a+\)+",
        r"x{2}(y{3,})",
        r"(?:a+b){2}",
        r"[a\]+]+c",
        r"[a\[]",
        r"a+?b*?",
        r"(a+)+",
        r"^(?:a|aa)+$",
        r"(\s*\S+)*$",
        r".*.*.*=",
        r"(?:x(a+)?)+",
        r"(?:a?){250}(?:b?){250}",
        "x" * 500,
    ],
)
def test_expressions_that_rules_may_use(text: str) -> None:
    assert check_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        r"(a{1,60}){1,60}",
        r"(?:a?){999}",
        r"[ab]{0,300}c[ab]{0,300}",
        r"(?:(?:ab){20}){20}c",
        "(?:a?b?){9}" * 28,
        r"(?<!not )found",
        r"(?=a)b",
        r"(?>a+)b",
        r"(a)\1",
        r"(?P<n>a)",
        r"(?<n>a)",
        r"(a)?(?(1)b)",
        r"a{",
        r"{a}",
        r"a++",
        r"a{2}+",
        "(",
        "[",
        "a\\",
        r"a\Z",
        "[[a]",
        "[a&&b]",
        "[a[b]",
        r"\U00000041",
        r"\N{DIGIT ONE}",
        "(?x)a b",
        "*a",
        "(?#c)a",
    ],
)
def test_expressions_that_rules_may_not_use(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check_expression(text)


@given(st.text(alphabet="ab()[]{}+*?|\\^.,1", max_size=30))
def test_checking_an_expression_always_ends_with_a_word(text: str) -> None:
    try:
        check_expression(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017  either way is right; only another error or a hang is not


# --- what others rely on ------------------------------------------------------------------------------


def test_importing_is_cheap() -> None:
    code = (
        "import sys, time; t = time.process_time(); import redrive.settings; s = time.process_time() - t;"
        "heavy = {'airflow', 'pyspark', 'botocore', 'sqlalchemy', 'pyarrow'} & set(sys.modules);"
        "assert not heavy, heavy; print(s)"
    )
    seconds = min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    )
    assert seconds < 1, "half of it on a machine that has nothing else to do"


def test_the_page_is_what_the_module_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "redrive.settings"], check=True, capture_output=True, text=True, env=os.environ
    )
    assert printed.stdout == configuration_page()


def test_the_example_says_nothing_that_yaml_reads_otherwise() -> None:
    raw = yaml.safe_load((REPOSITORY / "config" / "redrive.yaml").read_text())
    assert raw["routes"]["orders"]["canary"]["pass"] == 0.8


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "redrive.yaml"
    for text, said in (("routes: [", "not YAML"), ("- 1", "not a configuration")):
        path.write_text(text)
        with pytest.raises(SettingsError, match=f"^{re.escape(str(path))}: {said}"):
            settings.load(path, {})
