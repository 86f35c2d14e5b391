"""The stand-in as a server: its ports, its thread, its faults."""

import asyncio
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.stand_ins.service_bus import admin
from tests.stand_ins.service_bus.broker import STANDARD_BYTES, Entity, Message, Refused, Rules, World
from tests.stand_ins.service_bus.connection import Connection

ALL_RIGHTS = frozenset({"Manage", "Send", "Listen"})
TICK = 0.05


class ServiceBusStandIn:
    """One namespace on loopback: ``with ServiceBusStandIn() as bus: bus.queue("orders")``.

    Runs in a thread of its own; tests may look into :attr:`world` while holding :attr:`lock`. What it holds survives
    :meth:`stop` and :meth:`start`, as a real namespace survives the restart of its servers.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.lock = threading.RLock()
        self.world = World(self.now)
        self.keys: dict[str, tuple[str, frozenset[str]]] = {"root": ("c2VjcmV0", ALL_RIGHTS)}
        self.port = self.admin_port = 0
        self.sent = 0  # messages taken from senders
        self.transfers = 0  # requests that brought them
        self.admin_requests = 0
        self.operations: Counter[str] = Counter()  # of $management
        #: So many of the next sends are taken, and the connection breaks before the answer.
        self.lose_answers = 0
        #: Conditions for the next calls of (operation, path): attach, send, settle, renew-lock, …
        self.faults: dict[tuple[str, str], deque[str]] = {}
        self._ahead = 0.0
        self._connections: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[asyncio.Server] = []

    # --- life ----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen, on the same ports as before if it was stopped."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="service-bus-stand-in", daemon=True)
        self._thread.start()
        if not ready.wait(60):
            raise RuntimeError("the Service Bus stand-in does not start")
        return self

    def stop(self) -> None:
        """Break all connections and listen no more. Messages, locks and sessions stay."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        self._loop = self._thread = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def drop_connections(self) -> None:
        """Break all connections; new ones are welcome at once."""
        loop = self._loop
        if loop is not None:
            done = threading.Event()

            def drop() -> None:
                for connection in list(self._connections):
                    connection.abort()
                done.set()

            loop.call_soon_threadsafe(drop)
            if not done.wait(60):
                raise RuntimeError("the Service Bus stand-in does not break its connections")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        loop.run_until_complete(self._listen())
        ticking = loop.create_task(self._tick())
        ready.set()
        try:
            loop.run_forever()
        finally:
            ticking.cancel()
            for server in self._servers:
                server.close()
            for connection in list(self._connections):
                connection.abort()
            for task in (tasks := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _listen(self) -> None:
        amqp = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        http = await asyncio.start_server(
            lambda r, w: admin.serve(self, r, w), "127.0.0.1", self.admin_port, ssl=self._tls
        )
        self._servers = [amqp, http]
        self.port, self.admin_port = (int(one.sockets[0].getsockname()[1]) for one in self._servers)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self._connections.add(connection)
        await connection.run()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            with self.lock:
                self.world.tick()
            self.pump()

    # --- what connections ask --------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what can be sent, link by link in turn."""
        with self.lock:
            went = True
            while went:
                went = False
                for connection in list(self._connections):
                    went |= connection.pump()

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def fail(self, operation: str, path: str) -> None:
        """Raise the next fault that a test laid out for this."""
        waiting = self.faults.get((operation, path.lower()))
        if waiting:
            condition = waiting.popleft()
            raise Refused(condition, f"{operation} on {path}: {condition}, as the test wants it.")

    def max_message_bytes_of(self, path: str) -> int:
        try:
            return self.world.target(path).rules.max_message_bytes
        except Refused:
            return STANDARD_BYTES

    # --- what tests ask --------------------------------------------------------------------------------------

    def now(self) -> float:
        return time.time() + self._ahead

    def let_pass(self, seconds: float) -> None:
        """Move the clock; what time does is done when this returns."""
        with self.lock:
            self._ahead += seconds
            self.world.tick()

    def will_fail(self, operation: str, path: str, *conditions: str) -> None:
        """The next calls of ``operation`` on ``path`` fail with ``conditions``."""
        self.faults.setdefault((operation, path.lower()), deque()).extend(conditions)

    def connection_string(self, key: str = "root", secret: str | None = None) -> str:
        """What the SDK connects with; a wrong ``secret`` is refused as Azure does it."""
        secret = secret or self.keys[key][0]
        text = f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={key};SharedAccessKey={secret}"
        return text if self._tls else f"{text};UseDevelopmentEmulator=true"

    @property
    def admin_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.admin_port}"

    def queue(self, name: str, **rules: Any) -> Entity:
        with self.lock:
            return self.world.add_queue(name, Rules(**rules))

    def topic(self, name: str, **rules: Any) -> None:
        with self.lock:
            self.world.add_topic(name, Rules(**rules))

    def subscription(
        self, topic: str, name: str, *, accepts: Callable[[Message], bool] = lambda _: True, **rules: Any
    ) -> Entity:
        with self.lock:
            return self.world.add_subscription(topic, name, Rules(**rules), accepts)

    def entity(self, path: str) -> Entity:
        return self.world.entity(path)

    def messages(self, path: str) -> list[Message]:
        """What lies in an entity, in order."""
        with self.lock:
            return [message for _, message in sorted(self.entity(path).messages.items())]
