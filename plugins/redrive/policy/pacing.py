"""A token bucket: how fast messages may go out."""


class TokenBucket:
    """Lets ``per_second`` tokens through per second, with at most one second's worth saved up, or one whole token.

    Time is passed in, in seconds on any monotonic clock. Where something was let through before ``now``, ``idle`` says
    how many seconds ago: only what came together since then is there at first.
    """

    def __init__(self, per_second: float, now: float, idle: float | None = None) -> None:
        self.per_second = per_second
        self._capacity = max(1.0, per_second)
        self._tokens = self._capacity if idle is None else min(self._capacity, max(0.0, idle) * per_second)
        self._at = now

    @property
    def capacity(self) -> int:
        """Whole tokens that can be there at once."""
        return int(self._capacity)

    def available(self, now: float) -> int:
        """Whole tokens that may be taken at ``now``."""
        self._tokens = min(self._capacity, self._tokens + (now - self._at) * self.per_second)
        self._at = now
        return int(self._tokens)

    def take(self, count: int) -> None:
        """Use ``count`` tokens; more than there are puts the bucket into debt, which later time pays off."""
        self._tokens -= count

    def wait(self, count: int, now: float) -> float:
        """Seconds from ``now`` until ``count`` tokens (or the bucket's capacity, if that is less) are there."""
        missing = min(float(count), self._capacity) - self._tokens - (now - self._at) * self.per_second
        return max(0.0, missing / self.per_second)
