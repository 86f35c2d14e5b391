"""Backoff: a cap that grows, and full jitter between the least wait and the cap.

Full jitter (a delay drawn evenly from zero to the cap) spreads a crowd best; see Marc Brooker, "Exponential
Backoff And Jitter", AWS Architecture Blog, 2015. A least wait keeps a draw near zero from burning an attempt. The draw
is not random but a function of (message id, attempt), so that a plan that is computed again gives the same times, in
Python and in SQL alike.
"""

from datetime import timedelta

# Multiples of the golden ratio's fraction modulo a prime are spread more evenly than random draws (a
# low-discrepancy sequence), also over any run of consecutive ids.
_PRIME = 1_000_003
_BY_ID = 618_036
_BY_ATTEMPT = 414_215


def cap(number: int, *, first: timedelta, factor: float, longest: timedelta) -> timedelta:
    """The longest delay before delayed attempt ``number`` (1, 2, …): ``first * factor**(number - 1)``, at most
    ``longest``."""
    if number < 1:
        raise ValueError(f"delayed attempts are counted from 1, not {number}")
    seconds = first.total_seconds()
    for _ in range(number - 1):
        seconds *= factor
        if seconds >= longest.total_seconds():
            break
    return min(timedelta(seconds=min(seconds, longest.total_seconds())), longest)


def dice(message_id: int, attempt: int) -> float:
    """A number in [0, 1), always the same for one attempt of one message."""
    return ((message_id % _PRIME) * _BY_ID + attempt * _BY_ATTEMPT) % _PRIME / _PRIME


def dice_sql(message_id: str, attempt: str) -> str:
    """:func:`dice` as an SQL expression over integer expressions, for SQLite and PostgreSQL."""
    # PostgreSQL computes in the width of its operands and refuses what doesn't fit; the casts are no-ops elsewhere.
    by_id = f"(cast({message_id} as bigint) % {_PRIME}) * {_BY_ID}"
    by_attempt = f"cast({attempt} as bigint) * {_BY_ATTEMPT}"
    return f"(({by_id} + {by_attempt}) % {_PRIME} / cast({_PRIME} as double precision))"


def delay(message_id: int, attempt: int, *, limit: timedelta, least: timedelta = timedelta(0)) -> timedelta:
    """The delay before ``attempt`` (the one about to be made), evenly spread in [``least``, ``limit``)."""
    return least + (limit - least) * dice(message_id, attempt)
