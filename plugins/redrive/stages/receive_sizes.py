"""How many messages one receive asks for, so that what it brings has room in memory however large they are.

Nobody knows that before they came. So the first receive of a source asks for a few, each further one for more, and none
for more than have room if they are as large as those before.
"""

#: So many messages the first receive of a source asks for; each further one for so many times as many.
FIRST = 10
GROWTH = 10


def first(most_bytes: int, largest: int | None) -> int:
    """What the first receive asks for, where no message has more bytes than the ``largest``, if there is one."""
    return FIRST if largest is None else max(1, min(FIRST, most_bytes // largest))


class ReceiveSizes:
    """What the receives of one source may ask for."""

    def __init__(self, most_bytes: int, first: int) -> None:
        """One receive is to bring no more than ``most_bytes``, and the first one no more than so many messages."""
        self._most_bytes = most_bytes
        self._growing = first
        self._mean = 0.0  # bytes of a message

    def most(self, beside: int) -> int:
        """So many messages the next receive may bring, in a batch that has bytes ``beside`` them.

        A batch that is nearly full takes a quarter more than it has room for: else many receives would fill it.
        """
        room = max(self._most_bytes - beside, self._most_bytes // 4)
        return max(1, min(self._growing, int(room / self._mean) if self._mean else self._growing))

    def came(self, messages: int, size: int) -> None:
        """A receive brought ``messages`` of ``size`` bytes. A few small ones after large ones say little of
        those behind them."""
        self._mean = max(size / messages, self._mean / 2)
        self._growing = max(self._growing, min(GROWTH * messages, 1 << 20))
