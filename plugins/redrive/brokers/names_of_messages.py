"""What a broker is asked about names that messages brought: anyone may have written any number of them."""

import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from redrive.brokers.base import NAMES_ASKED
from redrive.errors import BrokerError

Answer = TypeVar("Answer")

#: Seconds until a name is asked about again of which an outage told nothing.
_ASKED_AGAIN: Final = 60.0


class NamesOfMessages(Generic[Answer]):
    """Asks about each name once, once a minute while an outage tells nothing, and :data:`NAMES_ASKED` times in all.

    ``otherwise`` is the answer where nobody tells. As many answers are kept as were asked for.
    """

    def __init__(self, otherwise: Answer, monotonic: Callable[[], float]) -> None:
        self._otherwise = otherwise
        self._monotonic = monotonic
        self._told: dict[str, tuple[Answer, float]] = {}  # and until when that holds
        self._asked = 0

    def __len__(self) -> int:
        return len(self._told)

    def answer(self, name: str, ask: Callable[[], Answer]) -> Answer:
        """What ``ask`` returns about ``name``, now or before; a :class:`~redrive.errors.BrokerError` of it is an
        outage."""
        told, until = self._told.get(name, (self._otherwise, -math.inf))
        if self._monotonic() < until or self._asked >= NAMES_ASKED:
            return told
        self._asked += 1
        try:
            told, until = ask(), math.inf
        except BrokerError:
            told, until = self._otherwise, self._monotonic() + _ASKED_AGAIN
        self._told[name] = told, until
        return told
