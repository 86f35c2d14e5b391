"""Doing again what failed for the moment: how often, how long, and what is raised in the end."""

import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPMessage

import pytest
from tests.answering import Answer, answering

from redrive import brokers
from redrive.brokers.rest import NotReady, Rest, _Redirects
from redrive.brokers.retries import BRIEF, STANDARD, RetryPolicy, again, until
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

AT_ONCE = RetryPolicy(3, 0, 0)


class Failing:
    """Fails a number of times, then answers."""

    def __init__(self, times: int, error: type[Exception] = ConnectionError) -> None:
        self.times, self.error, self.tries = times, error, 0

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.times:
            raise self.error(f"try {self.tries}")
        return "done"


def passes(error: BaseException) -> bool:
    return isinstance(error, ConnectionError)


def test_what_passes_is_done_again() -> None:
    work = Failing(2)
    waited: list[float] = []
    assert again(work, when=passes, sleep=waited.append) == "done"
    assert (work.tries, len(waited)) == (3, 2)


def test_in_the_end_its_own_error_is_raised() -> None:
    work = Failing(99)
    waited: list[float] = []
    with pytest.raises(ConnectionError, match="try 8"):
        again(work, when=passes, sleep=waited.append)
    assert work.tries == STANDARD.tries
    assert max(waited) <= STANDARD.longest


def test_a_server_that_is_not_there_is_told_sooner() -> None:
    work = Failing(99)
    with pytest.raises(ConnectionError):
        again(work, when=passes, away=passes, sleep=lambda _: None)
    assert work.tries == STANDARD.tries_where_away < STANDARD.tries
    brief = Failing(99)
    with pytest.raises(ConnectionError):
        again(brief, when=passes, away=passes, policy=BRIEF, sleep=lambda _: None)
    assert brief.tries == BRIEF.tries, "it says nothing of servers that are away"


def test_what_does_not_pass_is_raised_at_once() -> None:
    work = Failing(1, ValueError)
    with pytest.raises(ValueError, match="try 1"):
        again(work, when=passes, sleep=lambda _: None)
    assert work.tries == 1


@pytest.mark.parametrize(("needed", "asked", "said"), [(1, 1, True), (3, 3, True), (99, 8, False)])
def test_asking_ends_when_it_is_done_or_was_asked_enough(needed: int, asked: int, said: bool) -> None:
    tries: list[int] = []

    def done() -> bool:
        tries.append(1)
        return len(tries) >= needed

    assert until(done, sleep=lambda _: None) is said
    assert len(tries) == asked


# --- the admin REST client --------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Rest, list[str]]]]:
    """``serve((status, body), …)`` answers one after another; gives the client and what was asked."""
    with ExitStack() as leaving:

        def start(*answers: tuple[int, str]) -> tuple[Rest, list[str]]:
            url, asked = leaving.enter_context(answering([Answer(*one) for one in answers]))
            return Rest(f"{url}/api/", headers=lambda: {"Authorization": "me"}, context=None, timeout=60), asked

        yield start


def test_an_answer_is_decoded_and_the_request_says_who_we_are(serve: Callable[..., tuple[Rest, list[str]]]) -> None:
    rest, asked = serve((200, '{"depth": 3}'), (200, ""))
    assert rest.ask("queues/a%2Fb", "queue a/b") == {"depth": 3}
    assert rest.ask("queues/a%2Fb", "queue a/b", method="DELETE") is None
    assert asked == ["GET /api/queues/a%2Fb me", "DELETE /api/queues/a%2Fb me"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, PermissionRefused), (403, PermissionRefused), (404, QueueMissing), (400, BrokerError), (503, NotReady)],
)
def test_a_refusal_names_what_was_asked_and_the_servers_reason(
    serve: Callable[..., tuple[Rest, list[str]]], status: int, error: type[BrokerError]
) -> None:
    rest, _ = serve((status, json.dumps({"reason": "because of this\n\tat org.Secret(Secret.java:1)"})))
    with pytest.raises(error, match=rf"\Aqueue orders: HTTP {status} because of this\Z"):
        rest.ask("queues/orders", "queue orders")


def test_what_is_no_answer_is_an_outage(serve: Callable[..., tuple[Rest, list[str]]]) -> None:
    rest, _ = serve((200, "<html>"))
    with pytest.raises(BrokerUnavailable, match=r"\Aqueue orders: "):
        rest.ask("queues/orders", "queue orders")
    for odd in ("http://h:99999", "http://h:x", "http://[h", "h:80"):
        with pytest.raises(BrokerUnavailable, match="queue q: "):
            Rest(odd, headers=dict, context=None, timeout=1).ask("queues", "queue q")
    nobody = Rest("http://127.0.0.1:9", headers=dict, context=None, timeout=1)
    with pytest.raises(BrokerUnavailable, match=r"\Aqueue orders: "):
        nobody.ask("queues/orders", "queue orders")


def test_an_answer_without_end_is_not_read_to_its_end(
    serve: Callable[..., tuple[Rest, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers.rest, "LARGEST", 1 << 20)
    rest, _ = serve((200, json.dumps(["x" * (1 << 19)])), (200, json.dumps(["x" * (1 << 21)])), (400, "x" * (1 << 21)))
    assert len(rest.ask("queues", "queues")[0]) == 1 << 19
    with pytest.raises(BrokerError, match=r"\Aqueues: the answer has more than 1 MiB\Z"):
        rest.ask("queues", "queues")
    with pytest.raises(BrokerError, match=r"\Aqueues: HTTP 400 Bad Request\Z"):
        rest.ask("queues", "queues")


def test_a_server_that_is_starting_is_asked_again(serve: Callable[..., tuple[Rest, list[str]]]) -> None:
    rest, asked = serve((500, ""), (503, ""), (200, "[1]"))
    assert rest.retried("queues", "queues", AT_ONCE) == [1]
    assert len(asked) == 3
    rest, asked = serve((500, ""), (500, ""), (500, ""), (500, ""))
    with pytest.raises(NotReady):
        rest.retried("queues", "queues", AT_ONCE)
    assert len(asked) == AT_ONCE.tries


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_takes_no_credentials_to_another_host(status: int) -> None:
    with answering([Answer(200, "{}")]) as (other, asked_there):
        away = other.replace("127.0.0.1", "localhost")
        with answering([Answer(status, location=f"{away}/login?of=me")]) as (url, _):
            rest = Rest(url, headers=lambda: {"Authorization": "me"}, context=None, timeout=60)
            with pytest.raises(
                BrokerError, match=rf"\Aqueue q: HTTP {status} .* sent on to localhost, and not followed"
            ):
                rest.ask("queues", "queue q")
        assert asked_there == []


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_in_a_cluster_one_server_sends_on_to_another(method: str) -> None:
    with answering([Answer(200, "[1]")]) as (other, asked_there):
        away = other.replace("127.0.0.1", "localhost")
        with answering([Answer(307, location=f"{away}/unload")]) as (url, _):
            rest = Rest(url, headers=lambda: {"Authorization": "me"}, context=None, timeout=60, cluster=True)
            assert rest.ask("unload", "topic t", method=method) == [1]
        assert asked_there == [f"{method} /unload me"]


def test_a_redirect_that_would_change_what_is_done_is_an_error() -> None:
    """As a GET, a DELETE that is sent on to a page would look done."""
    with answering([Answer(302, location="/page"), Answer(200, "{}")]) as (url, asked):
        rest = Rest(url, headers=dict, context=None, timeout=60, cluster=True)
        with pytest.raises(BrokerError, match="HTTP 302"):
            rest.ask("connections/c", "connection c", method="DELETE")
    assert len(asked) == 1


def test_no_redirect_leaves_what_is_encrypted() -> None:
    redirects = _Redirects(elsewhere=True)
    ask = urllib.request.Request("https://mq.example.org/api", headers={"Authorization": "me"})

    def to(url: str) -> object:
        return redirects.redirect_request(ask, io.BytesIO(), 307, "", HTTPMessage(), url)

    assert to("http://mq.example.org/api") is None
    assert to("ftp://mq.example.org/api") is None
    assert to("https://other.example.org/api") is not None
