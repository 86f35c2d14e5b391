"""How fast one delivery task may send, by cause, and how much may be in flight."""

from dataclasses import dataclass
from datetime import timedelta

from redrive.classification.causes import Cause
from redrive.ledger.delivery import claims
from redrive.policy.pacing import TokenBucket
from redrive.stages.context import Context

#: Causes that go out at a tenth of the route's rate unless the route says otherwise: whoever was throttled, or
#: too slow for its lease, is not to be pushed.
SLOW_CAUSES = (Cause.THROTTLED, Cause.LEASE_EXPIRED)
SLOW_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Rate:
    """The budget of causes that share a rate: every send takes from each of its buckets, the route's is one."""

    buckets: tuple[TokenBucket, ...]
    max_in_flight: int
    starts_at_one: bool = False  # where nobody tells a depth: one in flight, and more as they prove themselves

    @property
    def capacity(self) -> int:
        """Whole tokens that can be there at once."""
        return min(one.capacity for one in self.buckets)

    def available(self, now: float) -> int:
        """Whole tokens that may be taken at ``now``."""
        return min(one.available(now) for one in self.buckets)

    def wait(self, count: int, now: float) -> float:
        """Seconds from ``now`` until ``count`` tokens, or the capacity, are there."""
        return max(one.wait(count, now) for one in self.buckets)

    def take(self, count: int) -> None:
        """Use ``count`` tokens of each."""
        for one in self.buckets:
            one.take(count)


def rates(context: Context, now: float, shard: int, shards: int) -> dict[str | None, Rate]:
    """A band for each cause with a rate of its own, and under None the one for all others, for one of so many
    ``shards``. What goes by a cause's rate counts for the route's too: together they are no faster than that."""
    rate = context.route.rate
    whole = _bucket(context, rate.per_second / shards, now, shard)
    bands: dict[str | None, Rate] = {None: Rate((whole,), rate.max_in_flight)}
    for cause in sorted({*SLOW_CAUSES, *(c for c, over in context.route.causes.items() if over.rate is not None)}):
        over = context.route.causes.get(cause)
        own = over.rate if over else None
        per_second = own.per_second if own and own.per_second else rate.per_second * SLOW_SHARE
        most = own.max_in_flight if own and own.max_in_flight else max(1, int(rate.max_in_flight * SLOW_SHARE))
        at_one = cause is Cause.LEASE_EXPIRED and not (own and own.max_in_flight)
        own_bucket = _bucket(context, per_second / shards, now, shard, cause)
        bands[cause.value] = Rate((whole, own_bucket), most, at_one)
    return bands


def _bucket(context: Context, per_second: float, now: float, shard: int, cause: Cause | None = None) -> TokenBucket:
    """The budget of a task. Of a rate of less than one a second, the task before may have just used what there was."""
    idle = None
    if per_second < 1:
        wall = context.now()
        with context.ledger.read() as connection:
            since = wall - timedelta(seconds=1 / per_second)
            last = claims.last_sent(connection, context.name, shard, since, cause and cause.value)
        idle = None if last is None else (wall - last).total_seconds()
    return TokenBucket(per_second, now, idle)
