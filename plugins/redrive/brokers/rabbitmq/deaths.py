"""The story of a message's death, as RabbitMQ tells it in the header ``x-death``."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from redrive.brokers.rabbitmq.content_header import MARK, seconds_of
from redrive.message import SECOND, Header, Micros, count, instant


class Death(NamedTuple):
    """One entry of ``x-death``: how often a message died in one queue for one reason, and when first."""

    queue: str
    reason: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls on a death
    at: Micros | None


def deaths_of(header: Header) -> tuple[Death, ...]:
    """The entries of an ``x-death`` header as they are there; nonsense (a forged header) gives none."""
    try:
        entries = json.loads(header.value)
        return tuple(
            Death(str(entry["queue"]), str(entry["reason"]), _count(entry.get("count")), _time(entry.get("time")))
            for entry in entries
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return ()


def failure(deaths: tuple[Death, ...], first: Header | None) -> Death | None:
    """The death that tells where the message failed: at its consumer's queue, not in a delay queue on the way.

    That is the oldest one that a consumer caused; without any, the first death of all. ``x-death`` itself is in no
    reliable order: an entry that is counted up moves, and its time stays that of its first death.
    """
    if not deaths:
        return None
    oldest_last = sorted(deaths, key=lambda death: -(death.at or 0))  # stable: newest first, as the broker adds them
    caused = [death for death in oldest_last if death.reason in ("rejected", "delivery_limit")]
    if caused:
        return caused[-1]
    named = [death for death in oldest_last if first is not None and death.queue == first.value]
    return named[-1] if named else oldest_last[-1]


def deliveries(
    deaths: tuple[Death, ...],
    failed: Death | None,
    counted: Header | None,
    redelivered: bool,
    delivery_limit: Callable[[str], int | None],
) -> int:
    """How often the message was delivered: by its deaths where it failed, or by what the queue counted meanwhile.

    A death of a delivery limit stands for all deliveries that the limit allows, where ``delivery_limit`` knows that.
    """
    if failed is None:
        before = -1 if counted is None else count(counted.value, otherwise=-1)
        return count(before + 1) or (2 if redelivered else 1)
    total = 0
    for death in deaths:
        if death.queue != failed.queue:
            continue
        each = 1
        if death.reason == "delivery_limit":
            each = (delivery_limit(death.queue) or 0) + 1
        total += death.count * each
    return max(count(total), 1)


def _time(value: object) -> Micros | None:
    if isinstance(value, Mapping):
        value = value.get(f"{MARK}timestamp")
    return instant(seconds_of(value), SECOND) if isinstance(value, str) else None


def _count(value: object) -> int:
    if isinstance(value, Mapping):
        value = next(iter(value.values()), 1)
    return max(count(value, otherwise=1), 1)
