"""The ways to people: what goes over the wire to Slack and by mail, and what is refused."""

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from tests.servers import ROOT

from redrive.errors import NotificationFailed, SettingsError
from redrive.notify import channels
from redrive.notify.channels import Event, NeedsAirflow
from redrive.settings import Notify
from redrive.settings.route_parts import EventName

PAUSED = channels.notification(
    [Event("k3-7", "route_paused", "orders", "", "2026-11-20T12:00+00:00", {"by": "ana", "reason": "<deploy> & more"})]
)


def to(**target: Any) -> Notify:
    return Notify.model_validate(target)


class Wire:
    """What arrived, and where to send it."""

    def __init__(self, server: socketserver.TCPServer, got: list[str]) -> None:
        self.got, self.port = got, server.server_address[1]


@pytest.fixture
def web() -> Iterator[Wire]:
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(f"{self.path} {self.rfile.read(int(self.headers['Content-Length'])).decode()}")
            self.send_response(302 if "moved" in self.path else 200)
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Wire(server, got)
    server.shutdown()
    server.server_close()


@pytest.fixture
def mail() -> Iterator[Wire]:
    got: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode(errors="replace"):
                got.append(line.rstrip())
                if refusal := re.search("<later|<never", line):
                    self.wfile.write(b"450 greylisted\r\n" if refusal[0] == "<later" else b"550 nobody\r\n")
                    continue
                if line.upper().startswith("DATA"):
                    self.wfile.write(b"354 go on\r\n")
                    while (data := self.rfile.readline().decode()) != ".\r\n":
                        got.append(data.rstrip())
                self.wfile.write(b"221 bye\r\n" if line.upper().startswith("QUIT") else b"250 ok\r\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield Wire(server, got)
    server.shutdown()
    server.server_close()


def test_slack_gets_a_text_that_is_only_text(web: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "slackwebhook",
        "host": f"http://127.0.0.1:{web.port}/services",
        "password": "T0/B0/secret",
    }
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    channels.send(PAUSED, to(connection="chat"))
    path, _, body = web.got[0].partition(" ")
    assert path == "/services/T0/B0/secret"
    assert json.loads(body)["text"].startswith("*orders: paused by ana*\n&lt;deploy&gt; &amp; more.")


def test_a_redirect_is_not_followed_and_what_failed_is_said_without_the_secret(
    web: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "slackwebhook", "host": f"http://127.0.0.1:{web.port}", "password": "moved/secret"}
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    with pytest.raises(NotificationFailed, match="connection chat: it answered 302") as failure:
        channels.send(PAUSED, to(connection="chat"))
    assert len(web.got) == 1
    connection["host"] = "http://127.0.0.1:1"
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    with pytest.raises(NotificationFailed, match="connection chat: ConnectionRefusedError") as other:
        channels.send(PAUSED, to(connection="chat"))
    assert "secret" not in str(failure.value) + str(other.value)


def test_mail_has_a_subject_receivers_and_an_id_that_stays(mail: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"from_email": "redrive@example.org", "disable_ssl": True, "disable_tls": True}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_POST", json.dumps(connection))
    channels.send(PAUSED, to(connection="post", to=["ana@example.org", "ben@example.org"]))
    assert "Subject: orders: paused by ana" in mail.got
    assert "Message-ID: <k3-7@redrive.invalid>" in mail.got
    assert [line for line in mail.got if line.lower().startswith("rcpt to")] == [
        "rcpt TO:<ana@example.org>",
        "rcpt TO:<ben@example.org>",
    ]
    with pytest.raises(NotificationFailed, match="mail needs from_email in its extra, and `to` in notify"):
        channels.send(PAUSED, to(connection="post"))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("disable_ssl=false", "SSLError"),
        ("disable_ssl=true&disable_tls=false", "SMTPNotSupportedError"),
        ("disable_ssl=yes&disable_tls=maybe", "extra.disable_tls is neither true nor false"),
    ],
)
def test_mail_is_encrypted_unless_the_connection_says_no_in_a_word_that_means_it(
    mail: Wire, told: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"smtp://ana:s3cret@127.0.0.1:{mail.port}/?from_email=redrive%40example.org&{told}"
    monkeypatch.setenv("AIRFLOW_CONN_POST", address)
    with pytest.raises(NotificationFailed, match=said):
        channels.send(PAUSED, to(connection="post", to=["ana@example.org"]))
    assert not [line for line in mail.got if line.startswith(("AUTH", "mail FROM"))]


def test_mail_that_only_some_got_is_tried_again_where_that_may_help(
    mail: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"from_email": "redrive@example.org", "disable_ssl": True, "disable_tls": True}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mail.port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_POST", json.dumps(connection))
    with pytest.raises(NotificationFailed, match="connection post: it refused 1 of 2 receivers"):
        channels.send(PAUSED, to(connection="post", to=["ana@example.org", "later@example.org"]))
    channels.send(PAUSED, to(connection="post", to=["ana@example.org", "never@example.org"]))
    assert "it refused 1 of 2 receivers: never@example.org" in caplog.text
    assert mail.got.count("Subject: orders: paused by ana") == 2
    with pytest.raises(NotificationFailed, match="SMTPRecipientsRefused"):
        channels.send(PAUSED, to(connection="post", to=["never@example.org"]))


@pytest.mark.parametrize("kind", ["http", "smtp"])
def test_one_that_answers_byte_by_byte_is_not_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"HTTP/1.1 " if kind == "http" else b"220-")
            while not over.wait(0.05):  # so no read ever waits for long
                self.wfile.write(b"2")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    extra = {"from_email": "redrive@example.org", "disable_ssl": True, "disable_tls": True} if kind == "smtp" else {}
    connection = {"conn_type": kind, "host": "127.0.0.1", "port": server.server_address[1], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SLOW", json.dumps(connection))
    monkeypatch.setattr(channels, "TIMEOUT", 0.5)
    try:
        with pytest.raises(NotificationFailed, match=r"connection slow\b.*: it took more than 0\.5 s"):
            channels.send(PAUSED, to(connection="slow", to=["ana@example.org"] if kind == "smtp" else []))
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("connection", "more", "said"),
    [
        pytest.param("https://hooks.example.org/alerts", {}, "its schema is neither http nor https", id="path-in-uri"),
        pytest.param({"conn_type": "http", "host": "http://h/a b"}, {}, "its address has", id="blank"),
        pytest.param("http://h/?X-Token=caf%C3%A9%E2%82%AC", {}, "extra.'X-Token' is no header", id="no-latin"),
        pytest.param("http://h/?to+whom=x", {}, "extra.'to whom' is no header", id="no-name"),
        pytest.param("https://h/?verify=/nowhere.pem", {}, "extra.verify: No such file", id="no-authorities"),
        pytest.param("slackwebhook://", {}, "it has no token", id="no-token"),
        pytest.param(
            "slackwebhook://hooks.slack.com/services?webhook_token=T", {}, "its schema is neither", id="slack"
        ),
        pytest.param("smtp://h/?to_email=a@b.org", {}, "mail needs from_email", id="no-sender"),
        pytest.param("smtp://apikey:s3cret@h/?to_email=a@b.org", {}, "mail needs from_email", id="login-no-sender"),
        pytest.param("smtp://h/?from_email=a@b.org", {}, "`to` in notify", id="no-receiver"),
        pytest.param("smtp://h/?from_email=a%0A@b.org", {"to": ["a@b.org"]}, "no mail can be made", id="line-break"),
        pytest.param("smtp://h/?from_email=a@b.org&disable_ssl=x", {"to": ["a@b.org"]}, "extra.disable_ssl", id="flag"),
        pytest.param("aws://", {}, "'aws'; notify knows http", id="type"),
    ],
)
def test_what_can_not_work_is_told_without_sending_anything(
    connection: Any, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_OPS", value)
    with pytest.raises(SettingsError, match=re.escape(said)) as told:
        channels.check(to(connection="ops", **more))
    assert "connection ops: " in str(told.value) or "connection ops is" in str(told.value)
    assert not [one for one in ("alerts", "s3cret", "caf") if one in str(told.value)]
    with pytest.raises(NotificationFailed, match="connection ops"):
        channels.send(PAUSED, to(connection="ops", **more))


@pytest.mark.parametrize(
    ("kind", "connection", "more"),
    [
        ("http", "http://127.0.0.1:9/", {"path": "/alerts"}),
        ("https", "https://hooks.example.org/https", {}),
        ("slackwebhook", "slackwebhook://:T0%2FB0%2Fsecret@", {}),
        ("slackwebhook", {"conn_type": "slackwebhook", "host": "https://hooks.slack.com/services/T0/B0/x"}, {}),
        ("smtp", "smtp://ana%40b.org:s3cret@h/?to_email=a@b.org", {}),
        ("smtp", "smtp://h/?from_email=Redrive+%3Ca@b.org%3E", {"to": ["a@b.org", "c@b.org"]}),
    ],
)
def test_what_can_be_sent_is_said_to_be_all_right_and_is_not_sent(
    kind: str, connection: Any, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("nobody is connected to"))
    value = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_OPS", value)
    assert channels.check(to(connection="ops", **more)) == kind


def test_the_connections_of_the_docs_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "notifications.md").read_text()
    found = dict(re.findall(r"^export (AIRFLOW_CONN_\w+)='(\{.*?\})'$", text, re.DOTALL | re.MULTILINE))
    assert len(found) == 3
    for variable, value in found.items():
        monkeypatch.setenv(variable, value.replace("…", "x"))
        channels.check(to(connection=variable.removeprefix("AIRFLOW_CONN_").lower()))


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (None, "/flow/run?sig=abc"),
        ("/alerts", "/flow/run/alerts?sig=abc"),
        ("/alerts?x=1", "/flow/run/alerts?sig=abc&x=1"),
    ],
)
def test_a_query_of_the_address_arrives(
    web: Wire, path: str | None, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "http", "host": f"http://127.0.0.1:{web.port}/flow/run?sig=abc"}
    monkeypatch.setenv("AIRFLOW_CONN_OPS", json.dumps(connection))
    channels.send(PAUSED, to(connection="ops", path=path))
    assert web.got[0].partition(" ")[0] == asked


def test_a_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgresql://u:secret@host/db")
    with pytest.raises(NotificationFailed, match="'postgres'; notify knows http, slackwebhook and smtp"):
        channels.send(PAUSED, to(connection="db"))


def test_an_airflow_notifier_waits_for_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "airflow", raising=False)
    with pytest.raises(NeedsAirflow):
        channels.send(PAUSED, to(notifier="airflow.providers.smtp.notifications.smtp.SmtpNotifier"))


def test_a_target_can_be_told_of_every_event() -> None:
    target = to(connection="chat", events=get_args(EventName))
    assert all(target.wants(event) for event in get_args(EventName))


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"connection": "a", "notifier": "b.C"},
        {"notifier": "b.C", "to": ["a@b.c"]},
        {"notifier": "not a path"},
        {"connection": "a", "arguments": {"x": 1}},
        {"connection": "a", "events": ["everything"]},
        {"connection": "a", "to": ["ana@example.org\nBcc: x@example.org"]},
        {"connection": "a", "path": "no-slash"},
    ],
)
def test_a_target_that_makes_no_sense_is_refused(target: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        to(**target)


def test_targets_are_told_apart_without_their_arguments() -> None:
    names = {
        to(connection="a").name,
        to(connection="a", path="/b").name,
        to(notifier="b.C", arguments={"token": "secret"}).name,
        to(notifier="b.C", arguments={"token": "other"}).name,
    }
    assert len(names) == 4
    assert "secret" not in str(names)
