"""Ask the consumer's own records whether messages were processed already.

The keys go in batches to a database (the route's query, with the keys bound as parameters) or to an HTTP endpoint,
either through an Airflow connection. A check that fails, takes too long or answers what can't be understood raises
:class:`~redrive.errors.CheckFailed`; callers then hold the messages.

A key is a value from outside: one that is no number where the column holds numbers, or that holds a NUL, makes the
whole question fail. So the keys of a question that is refused are asked about in parts, and the few that can't be asked
about are told apart (:attr:`Checker.refused`).

An answer with a key that was not asked about is such an answer: the query or the service means something else by a key
than the route does, and then what it leaves out tells nothing either.

The endpoint gets ``POST {"keys": ["…", …]}`` and answers ``200 {"processed": ["…", …]}``: those of the keys that were
processed. Or it is asked, and answers, in words of its own, which the route's ``request`` and ``answer`` describe: a
search index, a key-value table, any API that takes many keys at once. Redirects are never followed: keys and
credentials go to the host that the connection names and to no other.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import sqlalchemy as sa

from redrive.connections import http, lookup
from redrive.connections.lookup import Connection
from redrive.errors import CheckFailed, KeysRefused, RedriveError
from redrive.settings import CheckAnswer, ProcessedCheck

BATCH = 500
#: So many keys of a batch may be refused; with more of them it is the check that is wrong, and not the keys.
MOST_REFUSED = 5
#: More than any honest answer about one batch: keys are headers, fields and ids.
MAX_ANSWER_BYTES = 16 << 20
#: Answers that say that the question is wrong, and nothing about who asks, or about the service.
_NOT_ASKABLE = (400, 422)
#: Seconds without a question after which a connection is not trusted to be still alive.
MAX_IDLE = 1.0
#: Drivers whose package has another name than the module that SQLAlchemy imports.
_PACKAGES = {
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
    "psycopg": "'redrive[postgres]'",
    "psycopg2": "psycopg2-binary",
    "snowflake": "snowflake-sqlalchemy",
}


class _Records(Protocol):
    def ask(self, keys: Sequence[str], seconds: float) -> set[str]:
        """Those of ``keys`` that were processed; should take no longer than ``seconds``."""
        ...

    def close(self) -> None: ...


class _Aside:
    """A thread that answers one question after the other. Nobody waits for its end, not even the end of the program:
    what it asks may never answer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: SimpleQueue[tuple[Future[set[str]], Callable[[], set[str]]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def answer(self, question: Callable[[], set[str]], seconds: float) -> set[str]:
        """What ``question`` returns or raises; TimeoutError where it takes longer than ``seconds`` with what waits
        before it. One that was not begun by then is never asked."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        answer: Future[set[str]] = Future()
        self._asked.put((answer, question))
        try:
            return answer.result(seconds)
        finally:
            answer.cancel()

    def close(self) -> None:
        """Let the thread end, after what it is asking."""
        self._asked.put(None)

    def _work(self) -> None:
        while (one := self._asked.get()) is not None:
            answer, question = one
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                found = question()
            except BaseException as error:  # it is the caller's to raise
                answer.set_exception(error)
            else:
                answer.set_result(found)


class Checker:
    """Runs one route's ``processed_check``. Close it when done; it holds a connection.

    ``refused`` are the keys of the last question that can't be asked about, while others of their batch could.
    """

    def __init__(self, check: ProcessedCheck) -> None:
        self.refused = set[str]()
        self._check = check
        self._records: _Records | None = None
        self._aside = _Aside("processed-check")

    def processed(self, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` that were processed."""
        wanted = list(dict.fromkeys(keys))
        found: set[str] = set()
        self.refused = set()
        size = min(BATCH, self._check.batch)
        for start in range(0, len(wanted), size):
            found |= self._ask_in_parts(wanted[start : start + size])
        return found

    def _ask_in_parts(self, keys: Sequence[str]) -> set[str]:
        """As :meth:`_ask`, without those of ``keys`` that are refused."""
        found, refused, parts = set[str](), set[str](), [keys]
        while parts:
            part = parts.pop()
            try:
                found |= self._ask(part)
            except KeysRefused:
                if len(part) > 1:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
                    continue
                refused.update(part)
                if len(refused) > MOST_REFUSED or len(refused) == len(keys):
                    raise
        self.refused |= refused
        return found

    def close(self) -> None:
        """Give the connection back."""
        self._aside.close()
        if self._records is not None:
            self._records.close()

    def _ask(self, keys: Sequence[str]) -> set[str]:
        where = f"processed_check through connection {self._check.connection}"
        try:
            # A thread, because no option limits the time of a query on every database, or of a name look-up.
            return self._aside.answer(partial(self._run, keys), self._check.timeout.total_seconds())
        except TimeoutError as error:
            raise CheckFailed(f"{where}: no answer within {self._check.timeout}") from error
        except (sa.exc.SQLAlchemyError, OSError, HTTPException) as error:
            reason = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
            kind = KeysRefused if isinstance(error, sa.exc.DataError) else CheckFailed
            raise kind(f"{where}: {reason.splitlines()[0]}") from error
        except ValueError as error:  # a driver that can't even send it; its text may hold the key
            raise KeysRefused(f"{where}: a key can't be sent: {type(error).__name__}") from error
        except ImportError as error:
            raise CheckFailed(f"{where}: {_missing(error)}") from error
        except RedriveError as error:
            raise (KeysRefused if isinstance(error, KeysRefused) else CheckFailed)(f"{where}: {error}") from error

    def _run(self, keys: Sequence[str]) -> set[str]:
        if self._records is None:
            connection = lookup.get(self._check.connection)
            if self._check.query is not None:
                self._records = _Database(connection, self._check.query)
            else:
                self._records = _Endpoint(connection, self._check)
        return self._records.ask(keys, self._check.timeout.total_seconds())


def _missing(error: ImportError) -> str:
    """What to install, where a database's driver is not; SQLAlchemy imports it when it is first asked for."""
    if not error.name:
        return f"its driver can't be imported: {error}"
    package = _PACKAGES.get(error.name, error.name)
    return f"its driver is not installed: no module {error.name!r} (pip install {package})"


class _Database:
    """The consumer's table."""

    def __init__(self, connection: Connection, query: str) -> None:
        self._query = sa.text(query).bindparams(sa.bindparam("keys", expanding=True))
        url = lookup.sqlalchemy_url(connection)
        arguments = {"check_same_thread": False} if url.get_backend_name() == "sqlite" else {}
        self._engine = sa.create_engine(url, connect_args=arguments, pool_pre_ping=True, hide_parameters=True)

    def ask(self, keys: Sequence[str], seconds: float) -> set[str]:  # noqa: ARG002 - the caller's thread bounds it
        with self._engine.connect() as connection:
            found = {row[0] for row in connection.execute(self._query, {"keys": list(keys)})}
        if None in found:
            raise CheckFailed(
                "the query answers rows without a key; its first column has to be the key, and never null"
            )
        return _only_asked(
            {str(one) for one in found}, keys, "the query has to select the column that it compares with"
        )

    def close(self) -> None:
        self._engine.dispose()


class _Endpoint:
    """The consumer's service."""

    def __init__(self, connection: Connection, check: ProcessedCheck) -> None:
        path, self._request, self._answer = check.path or "/", check.request, check.answer
        base = http.base_url(connection, "a check with a path")
        self._host, self._port = base.hostname or "", base.port
        self._path = http.request_target(connection, base, path)
        self._headers = http.headers(connection)
        self._trust = http.trust(connection) if base.scheme == "https" else None
        self._link: HTTPConnection | None = None
        self._used = 0.0

    def ask(self, keys: Sequence[str], seconds: float) -> set[str]:
        deadline = time.monotonic() + seconds
        body = json.dumps(_question(self._request or {"keys": "{keys}"}, keys)).encode()
        link = self._connected(seconds)
        try:
            link.request("POST", self._path, body, self._headers)
            response = link.getresponse()
            answer = _read(response, deadline)
        except BaseException:
            self.close()  # an answer that comes late must not be taken for that of the next question
            raise
        if response.will_close or response.status != 200:
            self.close()
        if response.status != 200:
            raise (KeysRefused if response.status in _NOT_ASKABLE else CheckFailed)(_refusal(response))
        self._used = time.monotonic()
        return _processed(answer, keys) if self._answer is None else _found(answer, keys, self._answer)

    def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):
                self._link.close()
            self._link = None

    def _connected(self, seconds: float) -> HTTPConnection:
        if time.monotonic() - self._used > MAX_IDLE:
            self.close()
        if self._link is None:
            if self._trust is not None:
                self._link = HTTPSConnection(self._host, self._port, timeout=seconds, context=self._trust)
            else:
                self._link = HTTPConnection(self._host, self._port, timeout=seconds)
        return self._link


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """The whole answer; one that drips or doesn't end is given up."""
    answer = bytearray()
    while chunk := response.read1(1 << 16):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise CheckFailed(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise CheckFailed("the answer took too long")
    if response.length:
        raise CheckFailed("the answer ended too early")
    response.read()  # nothing is left; only this tells the connection so
    return bytes(answer)


def _refusal(response: HTTPResponse) -> str:
    if 300 <= response.status < 400:
        return f"it answered {response.status}, a redirect, and those are not followed"
    return f"it answered {response.status} {response.reason[:80]}".rstrip()


def _processed(answer: bytes, keys: Sequence[str]) -> set[str]:
    """What an answer says; CheckFailed where it says anything else than which of the keys were processed."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise CheckFailed("the answer is not JSON") from error
    found = said.get("processed") if isinstance(said, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise CheckFailed('the answer is not {"processed": [keys as text]}')
    return _only_asked(set(found), keys, "the service has to answer keys as they were asked")


def _question(template: Any, keys: Sequence[str]) -> Any:
    """``template`` with the keys in it."""
    if template == "{keys}":
        return list(keys)
    if isinstance(template, dict):
        return {name: _question(value, keys) for name, value in template.items()}
    if isinstance(template, list):
        if len(template) == 1 and '"{key}"' in json.dumps(template):
            return [_about(template[0], key) for key in keys]
        return [_question(value, keys) for value in template]
    return template


def _about(template: Any, key: str) -> Any:
    if template == "{key}":
        return key
    if isinstance(template, dict):
        return {name: _about(value, key) for name, value in template.items()}
    return [_about(value, key) for value in template] if isinstance(template, list) else template


_NOTHING: Any = object()


def _at(value: Any, place: str) -> Any:
    """What is at ``place``, names with dots between them; :data:`_NOTHING` where there is nothing."""
    for name in place.split(".") if place else ():
        if not isinstance(value, dict) or name not in value:
            return _NOTHING
        value = value[name]
    return value


def _found(answer: bytes, keys: Sequence[str], words: CheckAnswer) -> set[str]:
    """What an answer says in the words of the route; CheckFailed where it says anything else."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise CheckFailed("the answer is not JSON") from error
    for place in words.empty:
        if _at(said, place) not in (_NOTHING, None, False, 0, "", [], {}):
            raise CheckFailed(f"the answer is not whole: there is something at {place}")
    items = _at(said, words.items)
    if not isinstance(items, list):
        raise CheckFailed(f"the answer has no list at {words.items}")
    told: dict[str, bool] = {}
    for item in items:
        key = _at(item, words.key)
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise CheckFailed(f"the answer has an item without a key at {words.key or 'its place'}")
        values = [(_at(item, place), wanted) for place, wanted in words.when.items()]
        if any(type(value) is not type(wanted) for value, wanted in values):
            raise CheckFailed(f"the answer has an item that does not tell {', '.join(words.when)}")
        told[str(key)] = all(value == wanted for value, wanted in values)
    _only_asked(set(told), keys, "it has to answer keys as they were asked")
    if words.when and (missing := len(set(keys) - told.keys())):
        raise CheckFailed(f"the answer says nothing of {missing} of {len(keys)} keys")
    return {key for key, done in told.items() if done}


def _only_asked(found: set[str], keys: Sequence[str], advice: str) -> set[str]:
    """``found``; CheckFailed where it holds what was not asked about. Keys may be personal, so none is named."""
    if strange := len(found.difference(keys)):
        raise CheckFailed(f"the answer has {strange} of {len(found)} keys that it was not asked about: {advice}")
    return found
