"""What is distinct about failures: the masked text, the broker's reason, and a hint that neither of them holds.

Messages come down to cases, and only cases are explained (:func:`redrive.classification.explain.explain_cases`).
"""

import hashlib
from typing import NamedTuple

from redrive.classification.causes import Cause
from redrive.message import Micros

#: A hint that a route's own rule matched: ``route:N``, N counted from 1 in the order of the configuration.
ROUTE_HINT = "route:"
#: A hint that the time per delivery, from the first one on, points to a lease that ran out.
LEASE_HINT = "lease"
#: The same where only the time from the enqueue on is known: it may have waited in a backlog as well.
MAYBE_LEASE_HINT = "lease?"
#: Time per delivery from this share of the lease on counts as a lease that ran out.
LEASE_SHARE = 0.9


class RouteRule(NamedTuple):
    """One entry of a route's ``rules``: where ``match`` is found in the unmasked text, ``cause`` it is."""

    match: str
    cause: Cause


class Case(NamedTuple):
    """What is distinct about failures, as far as cause and group go."""

    masked: str  # "" where nothing is said
    reason: str = ""  # one of failure_text.BROKER_REASONS or ""
    hint: str = ""  # "", LEASE_HINT, MAYBE_LEASE_HINT or ROUTE_HINT + number


def key_of(case: Case) -> int:
    """A signed 64-bit number that names ``case`` the same in every process.

    Two of a million cases share one with a probability below 1 in 10 million.
    """
    text = "\0".join(case).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


def lease_ran_out(lease: float, start: Micros | None, end: Micros | None, deliveries: int | None) -> bool:
    """Whether so many deliveries between two moments took about ``lease`` seconds each."""
    if start is None or end is None:
        return False
    return (end - start) / 1e6 / max(deliveries or 1, 1) >= lease * LEASE_SHARE
