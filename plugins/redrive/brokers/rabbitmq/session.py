"""The connection to a virtual host, opened anew where it was lost."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pika

from redrive.brokers.rabbitmq.link import Channel, Link
from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused

T = TypeVar("T")


class OpensLinks(Protocol):
    """Where a session gets its link from."""

    @property
    def user(self) -> str | None:
        """Who is connected."""

    def open(self, subject: str) -> Link:
        """A new link; ``subject`` is what it is opened for. Raises
        :class:`~redrive.errors.BrokerUnavailable` or :class:`~redrive.errors.PermissionRefused`, naming it."""


class Hosts:
    """The nodes of one cluster, any of which will do.

    ``subject`` names the connection in errors, ``timeout`` (seconds) bounds every answer of a link.
    """

    def __init__(
        self,
        parameters: Sequence[pika.ConnectionParameters],
        *,
        subject: str = "connection",
        timeout: float = 30,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.parameters = parameters
        self._subject = subject
        self._timeout = timeout
        self._sleep = sleep

    @property
    def user(self) -> str | None:
        """See :class:`OpensLinks`; the same on every host."""
        return self.parameters[0].credentials.username if self.parameters else None

    def open(self, subject: str) -> Link:
        """See :class:`OpensLinks`. Every host is tried, the whole list three times."""
        problem: BrokerError = BrokerUnavailable(f"{subject}: no host")
        for attempt in range(3):
            if attempt:
                self._sleep(0.3 * attempt)
            for parameters in self.parameters:
                where = f"{self._subject} at {parameters.host}:{parameters.port}"
                try:
                    return Link(parameters, timeout=self._timeout, subject=f"{where}, {subject}")
                except BrokerUnavailable as error:
                    problem = error
        raise problem


class Session:
    """The link that there is, and one channel for questions. Who holds something of a link is told when it is lost.

    While messages are on their way to the broker (:attr:`is_busy`), questions go over a link of their own: what a
    connection sends is read in its order, so the answer would wait behind all of them.
    """

    def __init__(self, hosts: OpensLinks) -> None:
        self.link: Link | None = None
        self.ever_connected = False
        self.hosts = hosts
        self.is_busy: Callable[[], bool] = lambda: False
        self._probe: Channel | None = None
        self._beside: Session | None = None
        self._may_have_another = True
        self._forgetters: list[Callable[[], None]] = []

    def on_loss(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called for every link that is given up, before there is another."""
        self._forgetters.append(forget)

    def connected(self, subject: str) -> Link:
        """The link, with what has come taken in; opened anew for ``subject`` where it was lost.

        Raises :class:`~redrive.errors.BrokerUnavailable` or :class:`~redrive.errors.PermissionRefused`.
        """
        if self.link is not None and self.link.is_open:
            self.link.serve()
        if self.link is not None and self.link.is_open:
            return self.link
        self._forget()
        self.link = self.hosts.open(subject)
        self.ever_connected = True
        return self.link

    def probed(self, queue: str, action: str) -> tuple[int, int]:
        """(ready messages, consumers) of ``queue``, zeros also where nobody knows; what is wrong is told as
        ``action``'s error. Raises :class:`~redrive.errors.QueueMissing` too.
        """
        return self._on_probe(queue, action, lambda channel: channel.count(queue, action))

    def counted(self, queue: str) -> tuple[int, int] | None:
        """As :meth:`probed`; None where nobody knows, see :meth:`Channel.known_count`."""
        action = "queue.declare"
        return self._on_probe(queue, action, lambda channel: channel.known_count(queue, action))

    def _on_probe(self, queue: str, action: str, ask: Callable[[Channel], T]) -> T:
        if self._may_have_another and self.is_busy():
            self._beside = self._beside or Session(self.hosts)
            try:
                return self._beside._on_probe(queue, action, ask)
            except (BrokerUnavailable, PermissionRefused):  # a user may be allowed no more than one connection
                self._may_have_another = False
        link = self.connected(f"{action} on queue {queue}")
        if self._probe is None or not self._probe.is_open:
            self._probe = link.channel()
        return ask(self._probe)

    def close(self) -> None:
        """Close the connection; what is held goes back to its queue at once. It may be used again."""
        if self._beside is not None:
            self._beside.close()
        if self.link is not None:
            self.link.close()
        self._forget()

    def _forget(self) -> None:
        if self.link is not None:
            self.link.abort()
        self.link = self._probe = None
        for forget in self._forgetters:
            forget()
