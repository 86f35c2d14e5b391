"""What the demo's consumer depends on: partner services, databases, a mail host, a credential, a disk.

Everything is real and small. While the shop is broken, a port really refuses connections, a transaction
really holds a database lock, a partner really answers 429, a disk is really full. :meth:`Shop.repair` mends
most of it; one carrier stays down, because something always does.
"""

import base64
import hashlib
import hmac
import json
import os
import socket
import socketserver
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import QueuePool

LOOPBACK = "127.0.0.1"
CUSTOMERS = range(1000, 1200)
SKUS = tuple(f"SKU-{n:04d}" for n in range(1, 41))
COUPONS = frozenset({"WELCOME5", "SPRING10"})
PRINT_LIMIT_BYTES = 256 * 1024
CURRENT_PRICE_VERSION = 4

SCHEMA = """
create table customers (customer_id integer primary key, name text not null);
create table orders (
    order_id text primary key,
    customer_id integer not null references customers (customer_id),
    placed_at text not null);
-- What the consumer has finished; a redelivery asks here first.
create table processed (
    message_id text primary key,
    order_id text,
    order_type text,
    handled_at text not null);
-- Every time that work was done to its end, so that work done twice shows.
create table work_log (message_id text not null, handled_at text not null);
"""


class Answer(NamedTuple):
    """How a partner answers: after ``delay`` seconds, with ``status``."""

    status: int
    reason: str = "OK"
    delay: float = 0.0


OK = Answer(200)


class TokenExpired(PermissionError):
    """The access token was once good."""


class Shop:
    """Everything around the consumer; a context manager that closes all of it."""

    def __init__(self, folder: Path, *, slow_seconds: float) -> None:
        """``slow_seconds`` is how long gift wrapping takes while the shop is broken."""
        self.slow_seconds = slow_seconds
        self._closed = False
        #: Requests that a partner has not answered yet wait for this; see :meth:`hang_up`.
        self.hung_up = threading.Event()
        self._signing_key = os.urandom(32)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.orders_db = folder / "orders.db"
        self.bookings_db = folder / "bookings.db"
        self.replica_db = folder / "replica.db"
        self.journal_db = folder / "journal.db"
        self._make_databases()

        self._answers = dict(BROKEN)
        self._answers["/giftwrap"] = Answer(200, delay=slow_seconds)
        self._partners = _PartnerServer((LOOPBACK, 0), _Partner, shop=self)
        # Bound but not listening: the port is ours, and every connection to it is refused.
        self._payments_socket = socket.socket()
        self._payments_socket.bind((LOOPBACK, 0))
        self._payments: _PartnerServer | None = None
        self._customs = socketserver.ThreadingTCPServer((LOOPBACK, 0), _HangsUp)
        self._customs.daemon_threads = True
        for server in (self._partners, self._customs):
            _serve(server)

        partners = f"http://{LOOPBACK}:{self._partners.server_address[1]}"
        self.partners_url = partners
        self.payments_url = f"http://{LOOPBACK}:{self._payments_socket.getsockname()[1]}"
        self.customs_url = f"http://{LOOPBACK}:{self._customs.server_address[1]}"
        self.mail_host = "mail.orders.invalid"  # reserved by RFC 2606: no resolver knows it
        self.mail_spool: Path | None = None
        self.fulfilment_token = self._token(expires_at=time.time() - 3600)
        #: A device that is always full; elsewhere, a folder, which can't be appended to.
        self.archive_file = Path("/dev/full") if Path("/dev/full").exists() else folder
        self.journal_pages = 2
        self.returns_desk_open = False
        self._lock_holder = sqlite3.connect(self.bookings_db, check_same_thread=False, isolation_level=None)
        self._lock_holder.execute("begin exclusive")
        self.pool: Engine = create_engine(
            f"sqlite:///{self.orders_db}", poolclass=QueuePool, pool_size=2, max_overflow=0, pool_timeout=0.1
        )
        self._pool_hogs = [self.pool.connect(), self.pool.connect()]

    def __enter__(self) -> "Shop":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every port, connection and file; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        self.hung_up.set()
        for server in (self._partners, self._customs, self._payments):
            if server is not None:
                server.shutdown()
                server.server_close()
        self._payments_socket.close()
        self._release_locks()
        self.pool.dispose()

    def hang_up(self) -> None:
        """Drop every request that still waits for an answer; later ones are answered as before."""
        dropped, self.hung_up = self.hung_up, threading.Event()
        dropped.set()

    def repair(self) -> None:
        """Mend what people would have mended overnight; the carrier is still down."""
        self._answers = dict.fromkeys(BROKEN, OK) | STILL_BROKEN
        self._payments_socket.listen(64)
        self._payments = _PartnerServer((LOOPBACK, 0), _Partner, shop=self, listening_socket=self._payments_socket)
        _serve(self._payments)
        self.customs_url = self.partners_url
        self.mail_spool = self._folder / "mail.txt"
        self.fulfilment_token = self._token(expires_at=time.time() + 3600)
        self.archive_file = self._folder / "invoices.txt"
        self.journal_pages = 100_000
        self.returns_desk_open = True
        self._release_locks()
        with closing(sqlite3.connect(self.replica_db)) as replica, replica:
            replica.execute("update prices set version = ?", (CURRENT_PRICE_VERSION,))

    def answer(self, path: str) -> Answer:
        """How the partner at ``path`` answers now."""
        return self._answers.get(path, OK)

    @contextmanager
    def orders(self) -> Iterator[sqlite3.Connection]:
        """A connection to the shop's own database; commits at the end, rolls back on an error."""
        with closing(sqlite3.connect(self.orders_db, timeout=15)) as connection, connection:
            connection.execute("pragma foreign_keys = on")
            yield connection

    def next_order_number(self) -> int:
        """A number from which on no order was ever made here, also by an earlier demo in the same folder."""
        with self.orders() as database:
            (last,) = database.execute(
                "select coalesce(max(cast(substr(order_id, 5) as integer)), 0) from processed"
            ).fetchone()
        return int(last) + 100_000 if last else 1000

    def release_order(self, order_id: str) -> None:
        """Ask fulfilment to ship; raises :class:`TokenExpired` if our credential ran out."""
        payload, _, signature = self.fulfilment_token.partition(".")
        expected = hmac.new(self._signing_key, payload.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signature, expected):
            raise PermissionError(f"fulfilment refuses to release {order_id}: signature mismatch")
        claims = json.loads(base64.urlsafe_b64decode(payload))
        age = time.time() - claims["expires_at"]
        if age > 0:
            raise TokenExpired(f"access token of {claims['account']!r} expired {age:.0f} s ago")

    def _token(self, *, expires_at: float) -> str:
        claims = json.dumps({"account": "order-consumer", "expires_at": expires_at})
        payload = base64.urlsafe_b64encode(claims.encode()).decode()
        return f"{payload}.{hmac.new(self._signing_key, payload.encode(), hashlib.sha256).hexdigest()}"

    def _make_databases(self) -> None:
        with closing(sqlite3.connect(self.orders_db)) as orders, orders:
            orders.execute("pragma journal_mode = wal")
            if not orders.execute("select 1 from sqlite_master where name = 'processed'").fetchone():
                orders.executescript(SCHEMA)
            orders.executemany(
                "insert or ignore into customers values (?, ?)", [(n, f"Customer {n}") for n in CUSTOMERS]
            )
        with closing(sqlite3.connect(self.bookings_db)) as bookings, bookings:
            bookings.execute("create table if not exists bookings (order_id text, amount text)")
        with closing(sqlite3.connect(self.replica_db)) as replica, replica:
            replica.execute("create table if not exists prices (sku text primary key, version integer not null)")
            # The replica stopped following one version ago.
            replica.executemany(
                "insert or replace into prices values (?, ?)",
                [(sku, CURRENT_PRICE_VERSION - 1) for sku in SKUS],
            )
        with closing(sqlite3.connect(self.journal_db)) as journal, journal:
            journal.execute("create table if not exists journal (entry text)")

    def _release_locks(self) -> None:
        for hog in self._pool_hogs:
            hog.close()
        self._pool_hogs = []
        self._lock_holder.close()


#: How partners answer while the shop is broken.
BROKEN = {
    "/warehouse": Answer(200, delay=1.5),  # far slower than the consumer's patience
    "/recheck": Answer(425, "Too Early"),
    "/quotes": Answer(429, "Too Many Requests"),
    "/tax": Answer(503, "Service Unavailable"),
    "/routes": Answer(502, "Bad Gateway"),
    "/carrier": Answer(503, "Down for Maintenance"),
    "/addresses": Answer(504, "Gateway Timeout"),
    "/fraud": Answer(401, "Unauthorized"),
    "/partners": Answer(403, "Forbidden"),
    "/payments": OK,
    "/customs": OK,
    "/giftwrap": OK,
    "/engraving": OK,
    "/print": OK,
    "/coupons": OK,
}
STILL_BROKEN = {"/carrier": Answer(503, "Down for Maintenance")}


class _PartnerServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        shop: Shop,
        listening_socket: socket.socket | None = None,
    ) -> None:
        self.shop = shop
        super().__init__(address, handler, bind_and_activate=listening_socket is None)
        if listening_socket is not None:
            self.socket.close()
            self.socket = listening_socket
            self.server_address = listening_socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up waiting is what this server is for; it is not worth a word."""


class _Partner(BaseHTTPRequestHandler):
    """One request to a partner service; the path says which."""

    server: _PartnerServer

    def do_POST(self) -> None:
        shop = self.server.shop
        hung_up = shop.hung_up
        path, _, coupon = self.path.partition("?")
        answer = shop.answer(path)
        length = int(self.headers.get("Content-Length", 0))
        if path == "/print" and length > PRINT_LIMIT_BYTES:
            answer = Answer(413, "Content Too Large")
        elif path == "/coupons" and coupon not in COUPONS:
            answer = Answer(404, "Not Found")
        elif path == "/engraving" and not shop.returns_desk_open:
            hung_up.wait()  # the machine never says that it is done
            return
        self.rfile.read(length)
        if hung_up.wait(answer.delay):
            return
        self.send_response(answer.status, answer.reason)
        if answer.status in {425, 429, 503}:
            self.send_header("Retry-After", "5")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal for the demo."""


class _HangsUp(socketserver.BaseRequestHandler):
    """Takes the first byte and resets the connection, as a crashing process does."""

    def handle(self) -> None:
        self.request.recv(1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.close()


def _serve(server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
