"""Themes that put what they are about together on purpose, round by round, where dice alone would too seldom.

Each says how its systems are (:data:`TRAITS`), what its routes say (:data:`ROUTES`), and tells a round of its story
(:data:`ROUNDS`) with a :class:`Writer`. All that is left open comes from the dice of the plan.
"""

import random
from collections.abc import Callable
from typing import Any

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
KEY_ERROR = "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku'"
THROTTLED = "HTTP Error 429: Too Many Requests"
#: Four groups that pass by themselves.
PASSING = (REFUSED, THROTTLED, "TimeoutError: timed out", "HTTP Error 503: Service Unavailable")

Choices = tuple[Any, ...]
_EXACT: dict[str, Choices] = {"depth": ("exact",), "lag": (0,), "shuffles": (False,)}
_KNOWN: dict[str, Choices] = {**_EXACT, "ids": ("kept", "new")}

#: What a system is like; each value is drawn from its choices.
TRAITS: dict[str, dict[str, Choices]] = {
    "pauses": _KNOWN,
    "stalls": _KNOWN,
    "takeovers": _KNOWN,
    "caps": _KNOWN,
    "retention": _KNOWN,
    "decisions": _KNOWN,
    "old": _KNOWN,
    "unknown": {**_KNOWN, "dedupe": (None, 300, 1200), "max_headers": (None,)},
    "derives": _KNOWN,
    "tripped": _KNOWN,
    "one-id": {**_EXACT, "ids": ("none",), "death_times": (False,), "dedupe": (None,)},
    "overtakes": {**_KNOWN, "ordered": (False,)},
    "put-off": _KNOWN,
    "inflow": _KNOWN,
    "answers": _KNOWN,
    "late-settles": _KNOWN,
    "half-settled": _KNOWN,
    "revoked": _KNOWN,
    "in-hand": _KNOWN,
    "relapses": {**_EXACT, "ids": ("none",), "death_times": (False,), "dedupe": (None,), "max_headers": (None,)},
    "looked-at": {"depth": ("late",), "lag": (60,), "shuffles": (False,), "ids": ("kept", "new"), "ordered": (False,)},
    "odd-times": _KNOWN,
    "estimates": {"depth": ("about",), "lag": (0,), "shuffles": (False,), "ordered": (False,)},
    "kills": {**_KNOWN, "dedupe": (None,)},
    "faulty": {**_KNOWN, "dedupe": (None,)},
    "beside": {**_KNOWN, "dedupe": (None,)},
    "idle": _KNOWN,
    "wavers": {"depth": ("about",), "lag": (0,), "shuffles": (False,), "ordered": (False,)},
    "shuffled": {"depth": ("exact",), "lag": (0,), "shuffles": (True,), "ordered": (False,)},
    "restored": {**_KNOWN, "dedupe": (None,)},
    "late-looks": {"depth": ("late",), "lag": (60,), "shuffles": (False,), "ids": ("kept", "new"), "ordered": (False,)},
    "twins": {**_EXACT, "ids": ("none",), "death_times": (False,), "dedupe": (None,), "max_headers": (None,)},
    "echoes": {**_EXACT, "ids": ("none",), "death_times": (False,), "dedupe": (None,)},
}
_OPEN: dict[str, Choices] = {"canary": ("off",), "breaker": ({"return_rate": 0.9, "min_samples": 50},)}
_CANARY = tuple({"first": first, "grow": 2, "pass": 0.6, "observe": "1m"} for first in (1, 2))
#: What its routes say, beyond what others say; ``None`` is left out.
ROUTES: dict[str, dict[str, Choices]] = {
    "pauses": {**_OPEN, "rate": (None,), "order_by": (None,), "deliver": ({"slice": 2, "confirm_window": 1},)},
    "stalls": {"deliver": ({"slice": 4, "confirm_window": 1}, {"slice": 50, "confirm_window": 2}), "order_by": (None,)},
    "takeovers": {"order_by": (None,)},
    "caps": {**_OPEN, "order_by": (None,)},
    "retention": {**_OPEN, "order_by": (None,), "retention": ("1h",)},
    "decisions": {"approvals": (1, 2), "canary": ("off", *_CANARY), "order_by": (None,)},
    "old": {**_OPEN, "order_by": (None,), "give_up_after": ("1h",)},
    "unknown": {**_OPEN, "order_by": (None,), "on_unknown": ("auto", "auto", "review", "review", "resend")},
    "derives": {**_OPEN, "order_by": (None,), "requeue_attempts": (2,)},
    "tripped": {
        "canary": ("off",), "order_by": (None,), "rate": (None,), "requeue_attempts": (2,), "delay_attempts": (2,),
        "breaker": ({"return_rate": 0.3, "min_samples": 4, "cool_down": "30m"},),
    },
    "one-id": {**_OPEN, "order_by": (None,)},
    "overtakes": {**_OPEN, "order_by": ("attribute:customer",), "drain": ({"limit": 2, "wait": "0s"},)},
    "put-off": {**_OPEN, "order_by": (None,)},
    "inflow": {**_OPEN, "order_by": (None,)},
    "answers": {
        **_OPEN, "order_by": (None,), "rate": (None,), "on_unknown": ("review", "auto"),
        "deliver": ({"slice": 50, "confirm_window": 30},),
    },
    "late-settles": {"order_by": (None,)},
    "half-settled": {"order_by": (None,)},
    "revoked": {"order_by": (None,), "approvals": (1, 1, 2), "canary": ("off", *_CANARY)},
    "in-hand": {**_OPEN, "order_by": (None,), "rate": ({"per_second": 5, "max_in_flight": 3},)},
    "relapses": {
        **_OPEN, "order_by": (None,), "rate": (None,), "requeue_attempts": (2,), "delay_attempts": (2,),
        "drain": ({"flush_messages": 50, "lease": "5m"},), "backoff": ({"native": False},),
    },
    "looked-at": {**_OPEN, "order_by": (None,), "rate": (None,), "requeue_attempts": (2,), "delay_attempts": (2,)},
    "odd-times": {**_OPEN, "order_by": (None,)},
    "late-looks": {
        **_OPEN, "order_by": (None,), "rate": (None,), "requeue_attempts": (2,), "backoff": ({"native": False},),
    },
    "estimates": {**_OPEN, "order_by": (None,), "rate": (None,), "backoff": ({"native": False},)},
    "kills": {
        **_OPEN, "order_by": (None,), "rate": (None,), "on_unknown": ("auto", "review", "resend"),
        "deliver": ({"slice": 4, "confirm_window": 1}, {"slice": 4, "confirm_window": 2}),
    },
    "faulty": {**_OPEN, "order_by": (None,), "rate": (None,), "on_unknown": ("auto", "review")},
    "beside": {
        **_OPEN, "order_by": (None,), "rate": (None,), "on_unknown": ("auto", "review"),
        "deliver": ({"slice": 4, "confirm_window": 2},),
    },
    "idle": {**_OPEN, "order_by": (None,), "rate": (None,), "backoff": ({"native": False},)},
    "wavers": {**_OPEN, "order_by": (None,), "rate": (None,), "backoff": ({"native": False},)},
    "shuffled": {**_OPEN, "order_by": (None,), "rate": (None,), "requeue_attempts": (2,), "delay_attempts": (2,)},
    "restored": {**_OPEN, "order_by": (None,), "on_unknown": ("review",)},
    "twins": {**_OPEN, "order_by": (None,), "drain": ({"flush_messages": 50, "lease": "30s"},)},
    "echoes": {**_OPEN, "order_by": (None,), "drain": ({"flush_messages": 50, "lease": "30s"},)},
}  # fmt: skip
#: The clients that its systems are reached through, where it is not only the simulation's own.
CLIENTS: dict[str, tuple[str, ...]] = {
    "stalls": ("plain", "plain", "pubsub", "service_bus"),
    "answers": ("sqs", "sqs_fifo"),
    "late-settles": ("plain", "pubsub", "pubsub", "service_bus", "sqs"),
    "half-settled": ("plain", "sqs", "pubsub", "service_bus"),
    "odd-times": ("plain", "rabbitmq", "rabbitmq_managed"),
    "beside": ("rabbitmq", "rabbitmq_managed"),
}


class Writer:
    """Writes the steps of one round, for every queue of the world that consumers read."""

    def __init__(
        self,
        dice: random.Random,
        add: Callable[..., None],
        routes: list[str],
        dead: dict[tuple[str, str], str],
        theme: str,
    ) -> None:
        self.dice, self.routes, self.dead, self._add, self._theme = dice, routes, dead, add, theme
        self.mains = list(dead)

    def add(self, op: str, **how: Any) -> None:
        """A step."""
        self._add(op, **how)

    def come(self, error: str, *, count: int = 4, fails: int = 1, **how: bool) -> None:
        """Messages come that will fail; ``shared``: with ids that others have, ``numbered``: with ids of their own,
        ``same_body``: all are one, as far as anybody can see."""
        for system, queue in self.mains:
            self.add("produce", system=system, queue=queue, count=count, error=error, fails=fails,
                     **{"same_body": False, **how})  # fmt: skip

    def die(self, error: str, *, count: int = 4, fails: int = 1, **how: bool) -> None:
        """Messages come, and fail."""
        self.come(error, count=count, fails=fails, **how)
        self.consume(self.dice.choice(["reject", "own"]))

    def consume(self, style: str, count: int = 20) -> None:
        """All consumers work for a while, on so many messages at most."""
        for system, queue in self.mains:
            self.add("consume", system=system, queue=queue, count=count, style=style, theme=self._theme)

    def run(self, minutes: float = 0, trouble: dict[str, Any] | None = None) -> None:
        """A run of each route, of which the first has this trouble."""
        for route in self.routes:
            self.add("run", route=route, minutes=minutes, shards=1, trouble=trouble or {})
            trouble = None

    def meet(self, who: str, of: str, most: int, **more: Any) -> dict[str, Any]:
        """Trouble: somebody acts at one of the first points of this kind."""
        at = self.dice.randint(0, most)
        return {"meet": at, "meet_of": of, "who": who, "dice": self.dice.getrandbits(32), **more}

    def review(self, how: str = "all", trouble: dict[str, Any] | None = None) -> None:
        """People decide, and what they decided is applied, on each route."""
        for route in self.routes:
            self.add("review", apply=True, how=how, route=route, trouble=trouble or {})
            trouble = None

    def peek(self, *, back: bool = True) -> None:
        """Somebody looks at all that is dead, and puts it back at once or keeps it for ten minutes."""
        for (system, _), dead in self.dead.items():
            self.add("peek", system=system, queue=dead, count=20, back=back)

    def each(self, op: str, **how: Any) -> None:
        """A step of each route."""
        for route in self.routes:
            self.add(op, route=route, **how)


def _pauses(w: Writer) -> None:
    w.die(REFUSED, count=6)
    w.run(0, w.meet("pause", "publish", 6))
    w.consume("own")
    w.run(1)
    w.each("resume")


def _stalls(w: Writer) -> None:
    w.die(REFUSED, count=6, fails=2)
    of = w.dice.choice(["before publish", "before publish", "before settle", "after receive", "after a commit"])
    who = w.dice.choice(["nobody", "nobody", "produce"])
    w.run(0, w.meet(who, of, 3, minutes=w.dice.choice([2, 10, 40])))
    w.consume(w.dice.choice(["own", "idle"]))
    w.run(7)


def _takeovers(w: Writer) -> None:
    w.die(REFUSED, count=5, fails=2)
    who = w.dice.choice(["take over", "take over", "second"])
    of = w.dice.choice(["publish", "publish", "settle", "receive", "transaction"])
    w.run(0, w.meet(who, of, 30 if of == "transaction" else 6))
    w.consume(w.dice.choice(["own", "idle"]))


def _caps(w: Writer) -> None:
    w.die(w.dice.choice(PASSING), count=1, fails=99)
    for _ in range(2):
        w.run(7)
        w.consume(w.dice.choice(["reject", "own"]))


def _retention(w: Writer) -> None:
    w.die(w.dice.choice([REFUSED, KEY_ERROR]), count=2)
    w.run(0)
    w.consume("own")
    w.run(7)
    w.review("one")
    w.add("retention")
    w.add("advance", minutes=w.dice.choice([30, 120]))
    w.add("retention")


def _decisions(w: Writer) -> None:
    w.die(KEY_ERROR, count=3, fails=2)
    w.run(0)
    w.add("advance", minutes=1)
    meanwhile = w.meet("reconsider", "transaction", 6) if w.dice.random() < 0.5 else None
    w.review(w.dice.choice(["all", "all", "group", "one"]), meanwhile)
    w.run(1)
    w.consume(w.dice.choice(["own", "reject"]))
    w.run(7)


def _old(w: Writer) -> None:
    w.die(w.dice.choice(PASSING), count=2, fails=99)
    w.run(0)
    w.consume("reject")
    w.add("advance", minutes=w.dice.choice([30, 90]))
    w.run(0)


def _unknown(w: Writer) -> None:
    w.die(REFUSED, count=3, fails=2)
    for system in dict(w.mains):
        action, fate = w.dice.choice([("publish", "lost"), ("publish", "lost"), ("publish", "error"), ("link", "cut")])
        w.add("trouble", system=system, action=action, fates=[fate] * w.dice.randint(1, 3))
    w.run(0)
    late = w.dice.random() < 0.5  # it fails when others have decided about it
    if not late:
        w.consume(w.dice.choice(["own", "reject"]))
    w.run(w.dice.choice([0, 1, 7, 40]))
    w.review("all")
    w.run(0)
    w.consume("few" if late else "own")
    w.run(0)


def _derives(w: Writer) -> None:
    w.die(REFUSED, count=4)
    w.run(0)
    w.consume("derives")
    w.run(1)
    w.consume("derives")


def _tripped(w: Writer) -> None:
    for error in PASSING:
        w.die(error, count=1, fails=99)
    w.run(7)
    w.consume("reject")
    w.die(w.dice.choice(PASSING), count=2, fails=99)
    w.run(7)
    w.consume("reject")


def _one_id(w: Writer) -> None:
    for _ in range(2):
        w.die(REFUSED, count=3, shared=True)
    w.run(0)
    w.die(REFUSED, count=2, shared=True)
    w.run(0)
    w.consume("own")


def _overtakes(w: Writer) -> None:
    w.die(REFUSED, count=4)
    for (system, _), dead in w.dead.items():  # somebody has the first in hand for ten minutes
        w.add("peek", system=system, queue=dead, count=w.dice.randint(1, 3), back=False)
    w.run(0)
    w.run(1)
    w.consume("own")
    w.run(7)


def _inflow(w: Writer) -> None:
    w.die(REFUSED, count=2)
    w.run(1, w.meet("produce", w.dice.choice(["after receive", "before settle", "after settle"]), 1))
    w.consume(w.dice.choice(["own", "idle"]))


def _answers(w: Writer) -> None:
    w.die(REFUSED, count=14)
    for system in dict(w.mains):
        fate = w.dice.choice(["lost", "lost", "error", "retry", "part"])
        w.add("trouble", system=system, action="publish", fates=[fate] * w.dice.randint(1, 2))
    w.run(0)
    w.consume(w.dice.choice(["own", "well"]))
    w.run(1)


def _late_settles(w: Writer) -> None:
    w.die(REFUSED, count=4)
    w.run(0, w.meet("nobody", "before settle", 1, minutes=40))
    w.run(7)
    w.consume("own")


def _put_off(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=99)
    w.run(7)
    w.consume("asks")
    w.run(0)


def _revoked(w: Writer) -> None:
    w.die(KEY_ERROR, count=1, fails=2)
    w.run(0)
    w.each("stand", decision="redeliver", minutes=300)
    w.die(KEY_ERROR, count=2, fails=2)
    w.run(0)
    w.review("one")
    w.add("revoke")
    w.add("advance", minutes=1)
    w.die(KEY_ERROR, count=2, fails=2)
    w.run(0)
    w.review("one")
    w.run(0)


def _in_hand(w: Writer) -> None:
    w.die(REFUSED, count=6)
    w.run(0)
    w.consume("hangs")
    w.run(1)
    w.consume("own")


def _relapses(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=3, numbered=True)
    w.run(0, {"die_at": 1, "die_of": "settle"})  # taken, and nobody wrote it down
    for _ in range(2):
        w.run(w.dice.choice([0.5, 1]))
    w.consume("own")
    w.peek()
    w.run(0.1)
    w.run(7)
    w.consume("own")


def _looked_at(w: Writer) -> None:
    w.die(REFUSED, count=w.dice.randint(1, 2), fails=2)
    w.run(7)
    w.run(7)
    w.consume("own")
    w.peek(back=False)
    w.add("advance", minutes=2)
    w.run(0, w.meet("produce", "before receive", 0))
    w.run(1)
    w.add("advance", minutes=30)
    w.consume("own")


def _odd_times(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=2)
    w.run(0)
    w.consume("forges")
    w.run(7)
    w.consume(w.dice.choice(["own", "forges"]))


def _late_looks(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=2)
    w.run(7)
    for _ in range(3):
        w.run(0.2, {"skew": 90})
    w.consume(w.dice.choice(["own", "idle"]))
    w.run(7)
    w.consume("well")


def _estimates(w: Writer) -> None:
    w.die(REFUSED, count=1, fails=2)
    w.run(7)
    for _ in range(3):
        w.run(0.5)
    w.consume("own")
    w.run(7)


def _kills(w: Writer) -> None:
    w.die(REFUSED, count=4, fails=2)
    of = w.dice.choice(["publish", "publish", "publish", "commit", "settle", "file"])
    w.run(0, {"die_at": w.dice.randint(0, 24 if of == "commit" else 5), "die_of": of})
    w.consume(w.dice.choice(["own", "idle"]))
    w.run(7)
    w.consume("own")


def _beside(w: Writer) -> None:
    """Several slices one after the other; somebody dies, is replaced or pauses in the middle of them."""
    w.die(REFUSED, count=12, fails=2)
    of = w.dice.choice(["publish", "publish", "commit", "commit", "file"])
    met = w.dice.choice(["pause", "take over", "second", "produce"])
    trouble = w.dice.choice(
        [{"die_at": w.dice.randint(0, 60 if of == "commit" else 12), "die_of": of}, w.meet(met, "publish", 12)]
    )
    w.run(0, trouble)
    w.each("resume")
    w.consume(w.dice.choice(["own", "idle"]))
    w.run(7)
    w.consume("own")


def _faulty(w: Writer) -> None:
    w.die(REFUSED, count=4, fails=2)
    for system in dict(w.mains):
        fates = w.dice.choices(["lost", "error", "retry", "refused", "ok"], k=4)
        w.add("trouble", system=system, action="publish", fates=fates)
    w.run(0)
    w.run(1)
    w.consume("own")
    w.run(7)
    w.consume("well")


def _idle(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=2)
    w.run(7)
    w.run(w.dice.choice([0.5, 7]))
    w.run(7)
    w.consume("few")
    w.run(7)


def _wavers(w: Writer) -> None:
    w.die(REFUSED, count=1, fails=2)
    w.run(7)
    w.come(REFUSED, count=2)  # which nobody takes
    for _ in range(9):
        w.run(0.2)
    w.consume("own")


def _shuffled(w: Writer) -> None:
    w.die(REFUSED, count=3, fails=3)
    w.run(7)
    for _ in range(3):
        w.come(REFUSED, count=1, fails=2)
        w.consume("few")
        w.run(1)


def _restored(w: Writer) -> None:
    w.die(REFUSED, count=2, fails=2)
    for system in dict(w.mains):
        w.add("trouble", system=system, action="publish", fates=["lost", w.dice.choice(["lost", "ok", "error"])])
    w.run(0)
    w.run(w.dice.choice([1, 7]))
    w.each("restore", trouble={})
    w.consume("own")
    w.run(1)


def _twins(w: Writer) -> None:
    w.die(REFUSED, count=3)
    w.run(0)
    w.consume("derives")
    w.run(1, {"die_at": 0, "die_of": "settle", "again": True})  # recorded, and it comes again
    for minutes in (1, 1, 7):
        w.run(minutes)
    w.consume("well")


def _echoes(w: Writer) -> None:
    w.come(KEY_ERROR, count=2, fails=2, same_body=True, numbered=True)
    w.consume("reject", count=1)
    w.run(0, {"die_at": 1, "die_of": "settle"})  # taken, and nobody wrote it down
    for minutes in (1, 7, 1):  # after which nothing of it can come again
        w.run(minutes)
    w.consume("reject", count=1)
    w.peek()
    w.run(1)


def _half_settled(w: Writer) -> None:
    w.die(REFUSED, count=4, fails=2)
    for system in dict(w.mains):
        w.add("trouble", system=system, action="settle", fates=[w.dice.choice(["part", "part", "lost", "error"])])
    w.run(0)
    w.run(7)
    w.consume(w.dice.choice(["own", "idle"]))


#: A round of each theme's story.
ROUNDS: dict[str, Callable[[Writer], None]] = {
    "pauses": _pauses,
    "stalls": _stalls,
    "takeovers": _takeovers,
    "caps": _caps,
    "retention": _retention,
    "decisions": _decisions,
    "old": _old,
    "unknown": _unknown,
    "derives": _derives,
    "tripped": _tripped,
    "one-id": _one_id,
    "overtakes": _overtakes,
    "put-off": _put_off,
    "inflow": _inflow,
    "answers": _answers,
    "late-settles": _late_settles,
    "half-settled": _half_settled,
    "revoked": _revoked,
    "in-hand": _in_hand,
    "relapses": _relapses,
    "looked-at": _looked_at,
    "odd-times": _odd_times,
    "late-looks": _late_looks,
    "estimates": _estimates,
    "kills": _kills,
    "faulty": _faulty,
    "beside": _beside,
    "idle": _idle,
    "wavers": _wavers,
    "shuffled": _shuffled,
    "restored": _restored,
    "twins": _twins,
    "echoes": _echoes,
}
#: How many rounds there are.
LONG = {"wavers": 1, "caps": 4, "put-off": 4, "answers": 1}


def traits(theme: str, dice: random.Random) -> dict[str, Any]:
    """What its systems have to be like."""
    return {name: dice.choice(choices) for name, choices in TRAITS.get(theme, {}).items()}


def tell_route(theme: str, dice: random.Random, route: dict[str, Any]) -> None:
    """Make ``route`` say what it has to."""
    for name, choices in ROUTES.get(theme, {}).items():
        value = dice.choice(choices)
        if value is None:
            route.pop(name, None)
        elif isinstance(value, dict) and isinstance(route.get(name), dict):
            route[name] = {**route[name], **value}
        else:
            route[name] = value


def tell(theme: str, writer: Writer) -> None:
    """All rounds."""
    for _ in range(LONG.get(theme, 3)):
        ROUNDS[theme](writer)
