"""What people are told, and how: the words of a notification, and the ways to webhooks, Slack, e-mail and Airflow.

Words are made of names and numbers. No text of a message gets into one: no payload, no error text, no template.
"""

import importlib
import json
import logging
import smtplib
import ssl
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from email.message import EmailMessage
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Thread
from typing import Any, NamedTuple

from redrive.connections import http, lookup
from redrive.connections.lookup import Connection, address
from redrive.errors import NotificationFailed, RedriveError, SettingsError
from redrive.settings import Notify

log = logging.getLogger(__name__)

#: Seconds that one target may take.
TIMEOUT = 10.0
_SLACK = "https://hooks.slack.com/services"
_MAX_TEXT = 2_000


class NeedsAirflow(Exception):
    """This target can be told only from within an Airflow task; it waits for one."""


class Event(NamedTuple):
    """One thing that people have to know."""

    id: str  # the same however often it is sent
    event: str
    route: str
    subject: str
    raised_at: str  # ISO 8601, UTC
    facts: Mapping[str, Any]
    link: str = ""  # where to look at it; "" where the page's address is not known
    over_at: str = ""  # when it was over, where people could not be told before


@dataclass(frozen=True, slots=True)
class Notification:
    """What is sent: one event, or several of one kind and route that came together."""

    events: tuple[Event, ...]
    title: str
    text: str

    @property
    def id(self) -> str:
        """What a repeat is known by: the same for the same events and for no others, because whoever gets it takes what
        has a known id for a repeat, with all that is in it."""
        first, *others = (one.id for one in self.events)
        return f"{first}-{zlib.crc32(','.join(others).encode()):08x}" if others else first

    def to_json(self) -> dict[str, Any]:
        """The body of a webhook, and ``redrive`` in the templates of Airflow notifiers."""
        first = self.events[0]
        return {
            "id": self.id,
            "event": first.event,
            "route": first.route,
            "title": self.title,
            "text": self.text,
            "events": [
                {"id": one.id, "subject": one.subject, "raised_at": one.raised_at, "facts": dict(one.facts)}
                | ({"link": one.link} if one.link else {})
                | ({"resolved_at": one.over_at} if one.over_at else {})
                for one in self.events
            ],
        }


def notification(events: Sequence[Event]) -> Notification:
    """The words for events of one kind and route."""
    said = [_told_late(one, *_words(one)) for one in events]
    title, text = said[0]
    if len(said) > 1:
        title = f"{events[0].route}: {len(said)} times {events[0].event.replace('_', ' ')}"
        text = "\n".join(
            f"- {words.partition(': ')[2]}{f' {one.link}' if one.link else ''}"
            for (words, _), one in zip(said, events, strict=True)
        )
    elif events[0].link:
        text = f"{text}\n{events[0].link}"
    return Notification(tuple(events), " ".join(title.split())[:200], text[:_MAX_TEXT])


def _told_late(one: Event, title: str, text: str) -> tuple[str, str]:
    """The words, where it was over before people could be told."""
    if not one.over_at:
        return title, text
    return f"{title} (over)", f"It was over at {one.over_at}, before you could be told. It was: {text}"


def _words(one: Event) -> tuple[str, str]:
    facts = one.facts
    match one.event:
        case "new_group" if "decided_by" in facts:
            return (
                f"{one.route}: failure group {facts['group_id']} ({facts['cause']}) waits for a second person",
                f"{facts['messages']} messages. Decided by {facts['decided_by']}: {facts['decision']}. "
                "Nothing is done until somebody else approves it (approved_by).",
            )
        case "new_group":
            return (
                f"{one.route}: failure group {facts['group_id']} ({facts['cause']}) waits for a decision",
                f"{facts['messages']} messages. Suggested: {facts['suggested_decision']}. "
                f"Look at review_groups, or `redrive review list --route {one.route}`.",
            )
        case "route_paused":
            return (
                f"{one.route}: paused by {facts['by']}",
                f"{facts['reason']}. Nothing is sent until `redrive resume {one.route}`.",
            )
        case "slo_breach" if "most" in facts:
            return (
                f"{one.route}: {facts['queue']} holds {facts['depth']:,} messages, more than {facts['most']:,}",
                f"So it was seen at {facts['seen']}. Look at its consumers, and at `redrive status {one.route}`.",
            )
        case "slo_breach" if "queue" in facts:
            return (
                f"{one.route}: the oldest message in {facts['queue']} is older than the route's SLO of {facts['slo']}",
                f"It was first enqueued at {facts['oldest']}; {facts['messages']} messages are there. Look at its "
                f"consumers, and at `redrive status {one.route}`.",
            )
        case "slo_breach":
            return (
                f"{one.route}: messages are older than its SLO of {facts['slo']}",
                f"{facts['messages']} messages have no outcome after that time; the oldest was first enqueued at "
                f"{facts['oldest']}. Look at `redrive status {one.route}`.",
            )
        case "messages_expiring":
            return (
                f"{one.route}: messages in {facts['queue']} may expire unread",
                f"What lies there may be {facts['hours']} hours old, and it keeps messages for {facts['retention']}. "
                f"Run `redrive drain {one.route}`, or find out why its runs don't.",
            )
        case "consumers_stuck":
            return (
                f"{one.route}: {facts['consumers']} consumers of {facts['queue']} hold messages and get nowhere",
                f"They hold {facts['held']}, the first ({facts['first']}) since {facts['since']};"
                f" {facts['isolated']} are isolated: less is sent, and what they hold stays with them."
                " Restart them, or look at consumer_health.",
            )
        case _:
            return (
                f"{one.route}: the ledger does not add up",
                f"{facts['problems']} problems, the first: {facts['first']}. Run `redrive audit`.",
            )


# --- ways -------------------------------------------------------------------------------------------------------


def send(notification: Notification, target: Notify) -> None:
    """Tell ``target``. Raises :class:`NeedsAirflow`, or :class:`~redrive.errors.NotificationFailed` with the reason."""
    if target.notifier is not None:
        _through_airflow(notification, target)
        return
    try:
        connection = lookup.get(target.connection or "")
        match connection.conn_type:
            case "http" | "https":
                _in_time(lambda: _to_webhook(notification, connection, target.path), target)
            case "slackwebhook":
                _in_time(lambda: _to_slack(notification, connection), target)
            case "smtp":
                _in_time(lambda: _by_mail(notification, connection, target.to), target)
            case other:
                raise _unknown(connection.conn_id, other)
    except RedriveError as error:
        raise NotificationFailed(str(error)) from error
    except (OSError, HTTPException, smtplib.SMTPException, ValueError) as error:
        # Only its kind: the text may hold the address, and for Slack that is the secret.
        raise NotificationFailed(f"{target.name}: {type(error).__name__}") from error


def _in_time(tell: Callable[[], None], target: Notify) -> None:
    """Tell the target within :data:`TIMEOUT` in all: one that answers byte by byte makes no read wait for long. Where
    it takes longer, nobody waits for what comes of it."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            tell()
        except BaseException as error:  # it is the caller's to raise
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=run, name="notify", daemon=True).start()
    if not wait([done], TIMEOUT).done:
        raise NotificationFailed(f"{target.name}: it took more than {TIMEOUT:g} s")
    done.result()


class _Endpoint(NamedTuple):
    """Where a notification is posted, and how."""

    conn_id: str
    host: str
    port: int | None
    trust: ssl.SSLContext | None  # None: not encrypted
    path: str
    headers: Mapping[str, str]


class _Postbox(NamedTuple):
    """Through whom a mail goes, and to whom."""

    host: str
    port: int
    secure: bool  # encrypted from the start
    starttls: bool
    sender: str
    receivers: Sequence[str]


def check(target: Notify) -> str:
    """What kind of connection the target's is, once everything was made that :func:`send` needs: nothing is sent, and
    nobody is connected to. Raises :class:`~redrive.errors.SettingsError` for what can't work."""
    connection = lookup.get(target.connection or "")
    match connection.conn_type:
        case "http" | "https":
            _webhook(connection, target.path)
        case "slackwebhook":
            _slack(connection)
        case "smtp":
            box = _postbox(connection, target.to)
            sample = Event("doctor", "route_paused", "a route", "", "", {"by": "nobody", "reason": "a try"})
            try:
                _mail(notification([sample]), box)
            except (ValueError, IndexError) as error:  # of the parser of addresses
                raise SettingsError(
                    f"connection {connection.conn_id}: no mail can be made of its sender and receivers:"
                    f" {type(error).__name__}"
                ) from None
        case other:
            raise _unknown(connection.conn_id, other)
    return connection.conn_type


def _unknown(conn_id: str, kind: str) -> SettingsError:
    return SettingsError(f"connection {conn_id} is of type {kind!r}; notify knows http, slackwebhook and smtp")


def _webhook(connection: Connection, path: str | None) -> _Endpoint:
    base = http.base_url(connection, "a webhook")
    return _Endpoint(
        connection.conn_id,
        base.hostname or "",
        base.port,
        http.trust(connection) if base.scheme == "https" else None,
        http.request_target(connection, base, path),
        http.headers(connection),
    )


def _slack(connection: Connection) -> _Endpoint:
    token = str(connection.password or connection.extra.get("webhook_token") or "").strip("/")
    base = address(connection, "its host", http.with_scheme(connection, connection.host or _SLACK, "https"))
    if not token and base.path.rstrip("/") in ("", "/services"):
        raise SettingsError(
            f"connection {connection.conn_id}: it has no token; that is its password, what follows /services/ in the"
            " webhook's address"
        )
    return _Endpoint(
        connection.conn_id,
        base.hostname or "",
        base.port or connection.port,
        http.trust(connection) if base.scheme == "https" else None,
        http.request_target(connection, base, token or None),
        {"Content-Type": "application/json", "User-Agent": "redrive"},
    )


def _postbox(connection: Connection, to: Sequence[str]) -> _Postbox:
    login = connection.login if "@" in (connection.login or "") else ""  # others name who logs in, and nobody who sends
    sender = str(connection.extra.get("from_email") or login)
    receivers = list(to) or [one for one in str(connection.extra.get("to_email") or "").split(",") if one.strip()]
    if not sender or not receivers:
        raise SettingsError(f"connection {connection.conn_id}: mail needs from_email in its extra, and `to` in notify")
    # As Airflow's hook has it: TLS from the start unless disable_ssl, and else STARTTLS unless disable_tls.
    secure = not lookup.flag(connection, "disable_ssl", otherwise=False)
    starttls = not lookup.flag(connection, "disable_tls", otherwise=False) and not secure
    port = connection.port or (465 if secure else 25)
    return _Postbox(connection.host or "localhost", port, secure, starttls, sender, receivers)


def _to_webhook(notification: Notification, connection: Connection, path: str | None) -> None:
    _post(_webhook(connection, path), {"Idempotency-Key": notification.id}, notification.to_json())


def _to_slack(notification: Notification, connection: Connection) -> None:
    text = f"*{notification.title}*\n{notification.text}"
    for mark, instead in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):  # Slack's own marks
        text = text.replace(mark, instead)
    _post(_slack(connection), {}, {"text": text})


def _post(to: _Endpoint, more: Mapping[str, str], said: Mapping[str, Any]) -> None:
    link: HTTPConnection
    if to.trust is not None:
        link = HTTPSConnection(to.host, to.port, timeout=TIMEOUT, context=to.trust)
    else:
        link = HTTPConnection(to.host, to.port, timeout=TIMEOUT)
    with closing(link):
        link.request("POST", to.path, json.dumps(said).encode(), {**to.headers, **more})
        answer = link.getresponse()
        if not 200 <= answer.status < 300:
            raise NotificationFailed(f"connection {to.conn_id}: it answered {answer.status}")


def _mail(notification: Notification, box: _Postbox) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = notification.title, box.sender, ", ".join(box.receivers)
    mail["Message-ID"] = f"<{notification.id}@redrive.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{notification.text}\n\nEvents: {', '.join(one.id for one in notification.events)}\n")
    return mail


def _by_mail(notification: Notification, connection: Connection, to: Sequence[str]) -> None:
    box = _postbox(connection, to)
    mail, trust = _mail(notification, box), ssl.create_default_context()
    with (
        smtplib.SMTP_SSL(box.host, box.port, timeout=TIMEOUT, context=trust)
        if box.secure
        else smtplib.SMTP(box.host, box.port, timeout=TIMEOUT)
    ) as link:
        if box.starttls:
            link.starttls(context=trust)
        if connection.login and connection.password:
            link.login(connection.login, connection.password)
        refused = link.send_message(mail)
    if refused:
        # The others have it: they get it once more only where that may help (of those codes, 4xx).
        said = f"connection {connection.conn_id}: it refused {len(refused)} of {len(box.receivers)} receivers"
        if any(code < 500 for code, _ in refused.values()):
            raise NotificationFailed(said)
        log.warning("%s: %s", said, ", ".join(sorted(refused)))


def _through_airflow(notification: Notification, target: Notify) -> None:
    if "airflow" not in sys.modules:  # the command line: loading it would take seconds, and there is no task
        raise NeedsAirflow
    from airflow.sdk import get_current_context  # noqa: PLC0415 - only within Airflow

    try:
        context = get_current_context()
    except RuntimeError:
        raise NeedsAirflow from None
    module, _, name = (target.notifier or "").rpartition(".")
    started = time.monotonic()
    try:
        kind = getattr(importlib.import_module(module), name)
        kind(**target.arguments)({**context, "redrive": notification.to_json()})
    except Exception as error:  # whatever a notifier of somebody else raises
        took = time.monotonic() - started
        raise NotificationFailed(f"{target.name}: {type(error).__name__} after {took:.0f} s") from error
